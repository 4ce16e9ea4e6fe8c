#include "device.h"

#include <cstdio>
#include <cstdlib>
#include <pthread.h>

#include "report.h"

/// Streams that an epoch can tell from each other.
constexpr unsigned STREAMS = 255;

Device& device() {
    // Never destroyed: its thread runs until the process ends.
    static Device* device = new Device;
    return *device;
}

Device::Device() : random(variable("SIM_SEED", 1)), delay(variable("SIM_DELAY_US", 200)) {
    default_stream.reset(new Stream{1, true, {}, {}, {}});
    std::thread([this] { work(); }).detach();
}

Stream* Device::create_stream(bool blocking) {
    std::lock_guard lock(mutex);
    unsigned number = 2 + streams.size();
    if (number > STREAMS) {
        fprintf(stderr, "simulated CUDA: more than %u streams\n", STREAMS);
        abort();
    }
    streams.emplace_back(new Stream{number, blocking, {}, {}, {}});
    if (!for_new_streams.empty()) {
        streams.back()->waiting.push_back({"a wait", for_new_streams, [](const Accessor&) {}, std::make_shared<Mark>(), host});
    }
    return &*streams.back();
}

void Device::destroy_stream(Stream* stream) {
    std::lock_guard lock(mutex);
    stream->destroyed = true;
}

void Device::begin_capture(Stream* stream) {
    std::lock_guard lock(mutex);
    stream->captured = true;
    stream->capture_failed = false;
}

bool Device::end_capture(Stream* stream) {
    std::lock_guard lock(mutex);
    stream->captured = false;
    return !stream->capture_failed;
}

bool Device::fail_captures() {
    std::lock_guard lock(mutex);
    bool any = false;
    for (auto& stream : streams) {
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

std::shared_ptr<Mark> Device::enqueue(Stream* stream, std::string name, std::function<void(const Accessor&)> run, Marks after) {
    auto mark = std::make_shared<Mark>();
    {
        std::lock_guard lock(mutex);
        if (stream->destroyed) complain("a destroyed stream is given " + name);
        // The default stream waits for those that block, and they for it.
        auto last = [&](Stream& other) {
            if (!other.waiting.empty()) after.push_back(other.waiting.back().mark);
        };
        if (stream == &*default_stream) {
            for (auto& other : streams) if (other->blocking) last(*other);
        } else if (stream->blocking) {
            last(*default_stream);
        }
        stream->waiting.push_back({on_this_thread(std::move(name)), std::move(after), std::move(run), mark, host});
    }
    changed.notify_all();
    return mark;
}

void Device::wait(const Marks& marks) {
    std::unique_lock lock(mutex);
    for (auto& mark : marks) {
        changed.wait(lock, [&] { return mark->reached; });
        host.join(mark->clock);
    }
}

bool Device::reached(const Marks& marks) {
    std::lock_guard lock(mutex);
    for (auto& mark : marks) if (!mark->reached) return false;
    for (auto& mark : marks) host.join(mark->clock);
    return true;
}

Marks Device::end_of(Stream* stream) {
    return {enqueue(stream, "a mark", [](const Accessor&) {})};
}

Marks Device::ends() {
    std::vector<Stream*> all{&*default_stream};
    {
        std::lock_guard lock(mutex);
        for (auto& stream : streams) if (!stream->destroyed) all.push_back(&*stream);
    }
    Marks marks;
    for (Stream* stream : all) marks.push_back(end_of(stream)[0]);
    return marks;
}

void Device::wait_in_all(const Marks& marks) {
    std::lock_guard lock(mutex);
    for_new_streams = marks;
    for (auto& stream : streams) {
        if (stream->destroyed) continue;
        stream->waiting.push_back({"a wait", marks, [](const Accessor&) {}, std::make_shared<Mark>(), host});
    }
    changed.notify_all();
}

/// Takes an operation that may run. The lock is held.
Operation Device::take(Stream*& of) {
    std::vector<Stream*> ready;
    auto add = [&](Stream& stream) {
        if (stream.waiting.empty()) return;
        for (auto& mark : stream.waiting.front().after) if (!mark->reached) return;
        ready.push_back(&stream);
    };
    add(*default_stream);
    for (auto& stream : streams) add(*stream);
    if (ready.empty()) return {};
    of = ready[random() % ready.size()];
    // It stays where it is while it runs: others may want its mark.
    return of->waiting.front();
}

std::string Device::name(Epoch epoch) {
    std::lock_guard lock(mutex);
    Stream* stream = epoch.stream() == 1 ? &*default_stream : &*streams[epoch.stream() - 2];
    return stream->names[epoch.clock() - 1] + ", operation " + std::to_string(epoch.clock()) + " of stream " + std::to_string(epoch.stream());
}

void Device::work() {
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
        Clock& clock = stream->clock;
        clock.join(operation.host);
        for (auto& mark : operation.after) clock.join(mark->clock);
        Epoch epoch = Epoch::of(stream->number, stream->names.size());
        clock.set(stream->number, epoch.clock());
        Clock before = clock;
        lock.unlock();
        operation.run({epoch, &before, [this](Epoch epoch) { return name(epoch); }});
        lock.lock();
        stream->waiting.pop_front();
        operation.mark->clock = before;
        operation.mark->time = std::chrono::steady_clock::now();
        operation.mark->reached = true;
        changed.notify_all();
    }
}
