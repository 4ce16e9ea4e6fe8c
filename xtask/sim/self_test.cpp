// What the simulation must complain of, and what not: `self_test SCENARIO`. `cargo xtask sim` runs each in a process of its own.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <cuda.h>
#include <nvrtc.h>

static const char SOURCE[] = R"(
extern "C" __global__ void __launch_bounds__(64) mirror(const float* x, float* y, unsigned n) {
    __shared__ float of_block[64];
    unsigned i = blockIdx.x * 64 + threadIdx.x;
    of_block[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    float value = of_block[63 - threadIdx.x];
    value += __shfl_xor_sync(0xFFFFFFFF, value, 1);
    if (i < n) y[i] = value;
})";

static void expect(bool holds, const char* what) {
    if (holds) return;
    fprintf(stderr, "self test: not so: %s\n", what);
    exit(1);
}

static void done(CUresult result) { expect(result == CUDA_SUCCESS, "the driver succeeds"); }

static CUfunction compile(const char* include) {
    nvrtcProgram program;
    nvrtcCreateProgram(&program, SOURCE, "mirror", 0, nullptr, nullptr);
    std::string path = std::string("--include-path=") + include;
    const char* options[] = {path.c_str()};
    expect(nvrtcCompileProgram(program, 1, options) == NVRTC_SUCCESS, "the kernel compiles");
    size_t size;
    nvrtcGetPTXSize(program, &size);
    std::string ptx(size, 0);
    nvrtcGetPTX(program, ptx.data());
    CUmodule module;
    CUfunction function;
    done(cuModuleLoadData(&module, ptx.data()));
    done(cuModuleGetFunction(&function, module, "mirror"));
    return function;
}

constexpr unsigned COUNT = 100;
constexpr size_t BYTES = COUNT * sizeof(float);

/// Two streams, and two allocations on the first: one with numbers.
struct Setting {
    CUfunction mirror;
    CUstream first, second;
    CUdeviceptr x, y;
    std::vector<float> numbers = std::vector<float>(COUNT);

    explicit Setting(const char* include) : mirror(compile(include)) {
        done(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
        done(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
        done(cuMemAllocAsync(&x, BYTES, first));
        done(cuMemAllocAsync(&y, BYTES, first));
        for (unsigned i = 0; i < COUNT; i++) numbers[i] = i;
        done(cuMemcpyHtoDAsync(x, numbers.data(), BYTES, first));
    }

    void launch(CUstream stream, unsigned count = COUNT) {
        void* arguments[] = {&x, &y, &count};
        done(cuLaunchKernel(mirror, 2, 1, 1, 64, 1, 1, 0, stream, arguments, nullptr));
    }

    void order(CUstream before, CUstream after) {
        CUevent event;
        done(cuEventCreate(&event, 0));
        done(cuEventRecord(event, before));
        done(cuStreamWaitEvent(after, event, 0));
        done(cuEventDestroy(event));
    }

    void read(CUstream stream) {
        std::vector<float> y(COUNT);
        done(cuMemcpyDtoHAsync(y.data(), this->y, BYTES, stream));
        done(cuStreamSynchronize(stream));
        // The block's 64 numbers from the last to the first, each with its neighbour.
        expect(y[0] == 63 + 62 && y[1] == 62 + 63 && y[99] == 92 + 93, "the kernel mirrors");
    }
};

int main(int, char** arguments) {
    CUcontext context;
    done(cuInit(0));
    done(cuDevicePrimaryCtxRetain(&context, 0));
    done(cuCtxSetCurrent(context));
    Setting s(arguments[2]);
    std::map<std::string, std::function<void()>> scenarios = {
        {"ordered", [&] {
            s.launch(s.first);
            s.order(s.first, s.second);
            s.read(s.second);
            s.order(s.second, s.first);
            s.launch(s.first);
            done(cuMemFreeAsync(s.y, s.first));
            done(cuCtxSynchronize());
        }},
        {"ordered-by-the-host", [&] {
            s.launch(s.first);
            done(cuStreamSynchronize(s.first));
            s.read(s.second);
        }},
        {"read-too-early", [&] {
            s.launch(s.first);
            s.order(s.first, s.second);
            s.launch(s.first);
            std::vector<float> y(COUNT);
            done(cuMemcpyDtoHAsync(y.data(), s.y, BYTES, s.second));
            done(cuCtxSynchronize());
        }},
        {"overwritten-too-early", [&] {
            s.launch(s.first);
            s.order(s.first, s.second);
            std::vector<float> y(COUNT);
            done(cuMemcpyDtoDAsync(s.x, s.y, BYTES, s.second));
            s.launch(s.first);
            done(cuCtxSynchronize());
        }},
        {"freed-too-early", [&] {
            s.launch(s.first);
            s.order(s.first, s.second);
            s.launch(s.first);
            done(cuMemFreeAsync(s.y, s.second));
            done(cuCtxSynchronize());
        }},
        {"used-after-it-was-freed", [&] {
            s.launch(s.first);
            done(cuMemFreeAsync(s.y, s.first));
            s.launch(s.first);
            done(cuCtxSynchronize());
        }},
        {"out-of-bounds", [&] {
            s.launch(s.first, COUNT + 1);
            done(cuCtxSynchronize());
        }},
        {"never-written-and-read-by-a-kernel", [&] {
            done(cuMemFreeAsync(s.x, s.first));
            done(cuMemAllocAsync(&s.x, BYTES, s.first));
            s.launch(s.first);
            done(cuCtxSynchronize());
        }},
        {"used-before-it-is-there", [&] {
            done(cuStreamSynchronize(s.first));
            CUdeviceptr z;
            done(cuMemAllocAsync(&z, BYTES, s.first));
            // Nothing waits for the end: what is left then runs all the same.
            done(cuMemsetD8Async(z, 0, BYTES, s.second));
        }},
        {"never-written", [&] {
            std::vector<float> y(COUNT);
            done(cuMemcpyDtoHAsync(y.data(), s.y, BYTES, s.first));
            done(cuCtxSynchronize());
        }},
    };
    auto found = scenarios.find(arguments[1]);
    expect(found != scenarios.end(), "it is a scenario");
    found->second();
}
