// The settings that name files and folders.
#pragma once

#include "trireme/spec/config.h"

namespace trireme {

// Puts the home folder in the place of a leading ~. Called wherever a person's settings have been read.
void expand_paths(RunConfig& config);

}  // namespace trireme
