// Where and when something is said: for notes that people and other processes read.
#pragma once

#include <string>

namespace trireme {

std::string host_name();
std::string time_now();  // UTC, to the millisecond: "2026-03-01 09:30:00.250Z"

}  // namespace trireme
