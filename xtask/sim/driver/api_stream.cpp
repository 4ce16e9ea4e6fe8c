// Streams and events.
#include "api.h"
#include "report.h"

EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
    IN_CONTEXT;
    *stream = (CUstream)machine().create_stream(current(), !(flags & CU_STREAM_NON_BLOCKING));
    hold("streams", 1);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    machine().destroy_stream((Stream*)stream);
    hold("streams", -1);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    IN_CONTEXT;
    machine().wait(machine().end_of(stream_of(stream)));
    return broken();
}

EXPORT CUresult cuEventCreate(CUevent* event, unsigned) {
    IN_CONTEXT;
    *event = (CUevent) new Event{current(), {}};
    hold("events", 1);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event) {
    delete (Event*)event;
    hold("events", -1);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream handle) {
    IN_CONTEXT;
    Stream* stream = stream_of(handle);
    if (stream->context != ((Event*)event)->context) return CUDA_ERROR_INVALID_HANDLE;
    ((Event*)event)->marks = machine().end_of(stream);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxRecordEvent(CUcontext context, CUevent event) {
    IN_CONTEXT;
    if ((Context*)context != ((Event*)event)->context) return CUDA_ERROR_INVALID_HANDLE;
    // "If the specified context has a stream in the capture mode": the conflicting captures are invalidated.
    if (machine().fail_captures((Context*)context)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!variable("SIM_WITHOUT_RECORD", 0)) ((Event*)event)->marks = machine().ends((Context*)context);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
    // The event knows its context: CubeCL waits on threads that have none.
    if (broken()) return broken();
    machine().wait(((Event*)event)->marks);
    return broken();
}

EXPORT CUresult cuEventQuery(CUevent event) {
    // The event knows its context: CubeCL waits on threads that have none.
    if (broken()) return broken();
    return machine().reached(((Event*)event)->marks) ? broken() : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
    Marks marks[2] = {((Event*)start)->marks, ((Event*)end)->marks};
    if (marks[0].empty() || marks[1].empty()) return CUDA_ERROR_INVALID_HANDLE;
    if (!machine().reached(marks[0]) || !machine().reached(marks[1])) return CUDA_ERROR_NOT_READY;
    *milliseconds = std::chrono::duration<float, std::milli>(marks[1][0]->time - marks[0][0]->time).count();
    return CUDA_SUCCESS;
}

#undef cuEventElapsedTime
EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
    IN_CONTEXT;
    machine().enqueue(stream_of(stream), "a wait", [](const Accessor&) {}, ((Event*)event)->marks);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxWaitEvent(CUcontext context, CUevent event) {
    IN_CONTEXT;
    if (machine().fail_captures((Context*)context)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!variable("SIM_WITHOUT_WAIT", 0)) machine().wait_in_all((Context*)context, ((Event*)event)->marks);
    return CUDA_SUCCESS;
}

// Captures, as far as they fail: nothing makes graphs.

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode) {
    machine().begin_capture(stream_of(stream));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
    *graph = nullptr;
    bool is_graph = machine().end_capture(stream_of(stream));
    return is_graph ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}
