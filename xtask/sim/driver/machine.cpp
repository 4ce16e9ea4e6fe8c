#include "machine.h"

#include <cstdio>
#include <cstdlib>
#include <pthread.h>

#include "api.h"
#include "faults.h"
#include "report.h"

Machine& machine() {
    // Never destroyed: its thread runs until the process ends.
    static Machine* machine = new Machine;
    return *machine;
}

Machine::Machine() : random(variable("SIM_SEED", 1)), delay(variable("SIM_DELAY_US", 200)) {
    long devices = variable("SIM_DEVICES", 1);
    if (devices < 1 || devices > Memory::DEVICES) {
        fprintf(stderr, "simulated CUDA: SIM_DEVICES is %ld, and must be 1 to %d\n", devices, Memory::DEVICES);
        abort();
    }
    for (int ordinal = 0; ordinal < devices; ordinal++) {
        contexts.emplace_back(new Context{ordinal, nullptr, {}});
        contexts.back()->default_stream = add_stream(&*contexts.back(), true);
    }
    std::thread([this] { work(); }).detach();
}

/// The lock is held, or nobody else is there yet.
Stream* Machine::add_stream(Context* context, bool blocking) {
    unsigned number = 1 + streams.size();
    if (number >= Epoch::STREAMS) {
        fprintf(stderr, "simulated CUDA: more than %u streams\n", Epoch::STREAMS);
        abort();
    }
    streams.emplace_back(new Stream{number, context, blocking, {}, {}, {}, {}});
    return &*streams.back();
}

Stream* Machine::create_stream(Context* context, bool blocking) {
    std::lock_guard lock(mutex);
    Stream* stream = add_stream(context, blocking);
    if (!context->for_new_streams.empty()) {
        push(stream, {"a wait", context->for_new_streams, [](const Accessor&) {}, std::make_shared<Mark>(), host});
    }
    return stream;
}

/// The lock is held.
void Machine::push(Stream* stream, Operation operation) {
    stream->last = operation.mark;
    stream->waiting.push_back(std::move(operation));
}

void Machine::destroy_stream(Stream* stream) {
    std::lock_guard lock(mutex);
    stream->destroyed = true;
}

void Machine::begin_capture(Stream* stream) {
    std::lock_guard lock(mutex);
    stream->captured = true;
    stream->capture_failed = false;
}

bool Machine::end_capture(Stream* stream) {
    std::lock_guard lock(mutex);
    stream->captured = false;
    return !stream->capture_failed;
}

bool Machine::fail_captures(const Context* context) {
    std::lock_guard lock(mutex);
    bool any = false;
    for (auto& stream : streams) {
        if (stream->context != context) continue;
        any |= stream->captured;
        stream->capture_failed |= stream->captured;
    }
    return any;
}

/// An operation, with the test that it comes from: Rust's tests name their threads.
static std::string on_this_thread(std::string name) {
    char thread[16] = "";
    pthread_getname_np(pthread_self(), thread, sizeof thread);
    return name + " (thread " + thread + ")";
}

std::shared_ptr<Mark> Machine::enqueue(Stream* stream, std::string name, std::function<void(const Accessor&)> run, Marks after) {
    auto mark = std::make_shared<Mark>();
    {
        std::lock_guard lock(mutex);
        if (stream->destroyed) complain("a destroyed stream is given " + name);
        // The default stream waits for those that block, and they for it.
        auto last = [&](Stream& other) {
            if (other.last) after.push_back(other.last);
        };
        Stream* default_stream = stream->context->default_stream;
        if (stream == default_stream) {
            for (auto& other : streams) if (other->blocking && other->context == stream->context) last(*other);
        } else if (stream->blocking) {
            last(*default_stream);
        }
        push(stream, {on_this_thread(std::move(name)), std::move(after), std::move(run), mark, host});
    }
    changed.notify_all();
    return mark;
}

void Machine::wait(const Marks& marks) {
    std::unique_lock lock(mutex);
    for (auto& mark : marks) {
        changed.wait(lock, [&] { return mark->reached; });
        host.join(mark->clock);
    }
}

bool Machine::reached(const Marks& marks) {
    std::lock_guard lock(mutex);
    for (auto& mark : marks) if (!mark->reached) return false;
    for (auto& mark : marks) host.join(mark->clock);
    return true;
}

Marks Machine::end_of(Stream* stream) {
    return {enqueue(stream, "a mark", [](const Accessor&) {})};
}

Marks Machine::ends(const Context* context) {
    std::lock_guard lock(mutex);
    Marks marks;
    for (auto& stream : streams) if (stream->context == context && stream->last) marks.push_back(stream->last);
    return marks;
}

bool Machine::drain(std::chrono::steady_clock::time_point end) {
    std::unique_lock lock(mutex);
    return changed.wait_until(lock, end, [&] {
        for (auto& stream : streams) if (!stream->waiting.empty()) return false;
        return true;
    });
}

void drain() {
    if (!machine().drain(std::chrono::steady_clock::now() + std::chrono::seconds(20))) {
        fprintf(stderr, "simulated CUDA: operations are left that never ran\n");
    }
}

void Machine::wait_in_all(Context* context, const Marks& marks) {
    std::lock_guard lock(mutex);
    context->for_new_streams = marks;
    for (auto& stream : streams) {
        if (stream->context != context || stream->destroyed) continue;
        push(&*stream, {"a wait", marks, [](const Accessor&) {}, std::make_shared<Mark>(), host});
    }
    changed.notify_all();
}

/// Takes an operation that may run. The lock is held.
Operation Machine::take(Stream*& of) {
    std::vector<Stream*> ready;
    auto add = [&](Stream& stream) {
        if (stream.waiting.empty()) return;
        for (auto& mark : stream.waiting.front().after) if (!mark->reached) return;
        ready.push_back(&stream);
    };
    for (auto& stream : streams) add(*stream);
    if (ready.empty()) return {};
    of = ready[random() % ready.size()];
    // It stays where it is while it runs: others may want its mark.
    return of->waiting.front();
}

std::string Machine::name(Epoch epoch) {
    std::lock_guard lock(mutex);
    Stream& stream = *streams[epoch.stream() - 1];
    std::string of_device = contexts.size() > 1 ? " of device " + std::to_string(stream.context->ordinal) : "";
    return stream.names[epoch.clock() - 1] + ", operation " + std::to_string(epoch.clock()) + " of stream " + std::to_string(stream.number) + of_device;
}

void Machine::work() {
    std::unique_lock lock(mutex);
    for (;;) {
        Stream* stream = nullptr;
        Operation operation = take(stream);
        if (!stream) {
            changed.wait(lock);
            continue;
        }
        if (delay && random() % 4 == 0) {
            auto pause = std::chrono::microseconds(random() % delay);
            lock.unlock();
            std::this_thread::sleep_for(pause);
            lock.lock();
        }
        stream->names.push_back(operation.name);
        if (stream->names.size() >= Epoch::OPERATIONS) {
            fprintf(stderr, "simulated CUDA: more than %u operations in a stream\n", Epoch::OPERATIONS);
            abort();
        }
        Clock& clock = stream->clock;
        clock.join(operation.host);
        for (auto& mark : operation.after) clock.join(mark->clock);
        Epoch epoch = Epoch::of(stream->number, stream->names.size());
        clock.set(stream->number, epoch.clock());
        Clock before = clock;
        lock.unlock();
        // Where kernels do not compile, what reads their results goes on.
        static const bool anything = fault("compiler-fails") || fault("ptx-too-new");
        Accessor accessor{epoch, &before, stream->context->ordinal, [this](Epoch epoch) { return name(epoch); }, anything};
        // After an illegal access nothing runs any more.
        if (broken() == CUDA_SUCCESS) operation.run(accessor);
        lock.lock();
        stream->waiting.pop_front();
        operation.mark->clock = before;
        operation.mark->time = std::chrono::steady_clock::now();
        operation.mark->reached = true;
        changed.notify_all();
    }
}
