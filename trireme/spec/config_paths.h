// The settings that name files and folders.
#pragma once

#include "trireme/spec/config.h"

namespace trireme {

// Puts the home folder in the place of a leading ~. Called wherever a person's settings have been read.
void expand_paths(RunConfig& config);

// Files that belong to the file of settings that names them, such as a table of actions, are looked for from the folder
// that it lies in. Called after each file was read; what is left are whole paths, so that a copy of the settings in
// another folder names the same files.
void take_paths_from(const std::filesystem::path& folder, RunConfig& config);

}  // namespace trireme
