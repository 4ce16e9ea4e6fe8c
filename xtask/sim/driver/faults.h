// What goes wrong on demand: SIM_FAULT names one fault, with a number where it has one, as in `out-of-memory=3`.
//
// | fault                  | what                                                                                             |
// |------------------------|--------------------------------------------------------------------------------------------------|
// | `no-device`            | `cuInit` finds no device                                                                         |
// | `driver-version=12020` | the driver is one for CUDA 12.2                                                                  |
// | `out-of-memory=n`      | the n-th allocation of device memory fails, and all after it                                     |
// | `compiler-fails`       | NVRTC refuses every kernel                                                                       |
// | `ptx-too-new`          | the driver refuses what NVRTC makes                                                              |
// | `illegal-address=n`    | the n-th product reads where it must not: what is enqueued, allocated or waited for fails then   |
// | `cublaslt-version=n`   | cuBLASLt 12.3 is 12 * 10000 + 3 * 100                                                            |
// | `no-handle`            | cuBLASLt cannot be initialized                                                                   |
// | `no-algorithm`         | its heuristics succeed and name none                                                             |
// | `heuristics=n`         | they answer this status: 7 is INVALID_VALUE, 15 NOT_SUPPORTED                                    |
// | `product=n`            | every product is refused with this status: 13 is EXECUTION_FAILED                                |
#pragma once
#include <cstdlib>
#include <cstring>

/// The number of a fault that is asked for, 1 where it has none; 0 if it is not.
inline long fault(const char* name) {
    const char* asked = getenv("SIM_FAULT");
    size_t length = strlen(name);
    if (!asked || strncmp(asked, name, length)) return 0;
    if (!asked[length]) return 1;
    return asked[length] == '=' ? strtol(asked + length + 1, nullptr, 0) : 0;
}
