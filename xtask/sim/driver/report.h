// What the simulation has to complain about. The process ends with a failure where there was anything.
#pragma once
#include <string>

/// Prints a complaint, once for each text, and notes it. With SIM_ABORT=1 the process ends at once.
void complain(const std::string& text);

/// Waits until all that has been enqueued has run, some seconds at most: the last operations of a process are looked at, too.
void drain();

/// An environment variable as a number.
long variable(const char* name, long otherwise);
