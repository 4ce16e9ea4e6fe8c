// Devices, their streams, and events. One thread runs the operations of all streams, one after the other, in a random order among those that may run next:
// so they are late, overtake each other and pause, as on a GPU. Another seed makes another order; the host's threads have a part in it, so that no run repeats exactly.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "clock.h"
#include "memory.h"

/// A point in a stream that others can wait for.
struct Mark {
    bool reached = false;
    Clock clock;
    std::chrono::steady_clock::time_point time;
};
using Marks = std::vector<std::shared_ptr<Mark>>;

struct Operation {
    std::string name;
    /// Marks of other streams that come first.
    Marks after;
    std::function<void(const Accessor&)> run;
    /// Reached when it has run.
    std::shared_ptr<Mark> mark;
    /// What the host knew when it enqueued it.
    Clock host;
};

struct Context;

struct Stream {
    /// From 1 on: 0 is none.
    unsigned number;
    Context* context;
    /// Whether it waits for the default stream, and that for it.
    bool blocking;
    std::deque<Operation> waiting;
    /// That of the operation that was enqueued last.
    std::shared_ptr<Mark> last;
    Clock clock;
    /// The names of its operations so far, from number 1 on.
    std::vector<std::string> names;
    bool destroyed = false;
    /// Whether its operations are recorded for a graph, and whether something has made that impossible.
    bool captured = false, capture_failed = false;
};

struct Event {
    Context* context;
    Marks marks;
};

/// The primary context of a device, the only one that it has.
struct Context {
    int ordinal;
    Stream* default_stream;
    /// What new streams wait for.
    Marks for_new_streams;
};

class Machine {
public:
    Machine();

    Memory memory;

    /// How many devices there are: SIM_DEVICES, 1 unless set.
    int devices() const { return contexts.size(); }
    Context* context(int ordinal) { return &*contexts[ordinal]; }

    Stream* create_stream(Context* context, bool blocking);
    void destroy_stream(Stream* stream);

    /// Enqueues an operation. Its mark is reached when it has run.
    std::shared_ptr<Mark> enqueue(Stream* stream, std::string name, std::function<void(const Accessor&)> run, Marks after = {});
    /// Waits on the host. What the marks have seen has happened before whatever the host does next.
    void wait(const Marks& marks);
    bool reached(const Marks& marks);
    void begin_capture(Stream* stream);
    /// Whether the capture has come to a graph.
    bool end_capture(Stream* stream);
    /// Whether a stream of the context is captured; each such capture fails then. For what a capture forbids.
    bool fail_captures(const Context* context);
    /// The marks of what was enqueued last in each stream of the context.
    Marks ends(const Context* context);
    /// A new mark at the end of a stream.
    Marks end_of(Stream* stream);
    /// Whether all that was enqueued has run, before a time.
    bool drain(std::chrono::steady_clock::time_point end);
    /// Has the streams of the context wait, those that are created later too.
    void wait_in_all(Context* context, const Marks& marks);

private:
    void work();
    Operation take(Stream*& of);
    std::string name(Epoch epoch);
    Stream* add_stream(Context* context, bool blocking);
    void push(Stream* stream, Operation operation);

    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::unique_ptr<Context>> contexts;
    std::vector<std::unique_ptr<Stream>> streams;
    /// What the host knows.
    Clock host;
    std::mt19937 random;
    long delay;
};

/// The one of this process.
Machine& machine();
