// Paths as people give them: with ~ for a home folder, through links, and of files that are written when the work is
// done, whose place is looked at before it begins.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace trireme {

// "~/x" lies in the home folder and "~ann/x" in Ann's. An unknown user is refused. Every other path stays as it is.
std::filesystem::path expand_home(const std::filesystem::path& path);

// "runs/a is a dangling link: it points to /gone, which does not exist", of the path or of a folder that it goes
// through. Empty where no link dangles.
std::string dangling_link(const std::filesystem::path& path);

// Refuses a path at which nothing is: "notes.yaml: there is no such configuration file", or the link that dangles.
[[noreturn]] void refuse_missing(const std::filesystem::path& path, const std::string& what);

// Refuses a folder that could not be made, or written into where it is there. Makes nothing.
void check_output_folder(const std::filesystem::path& path);

// The same of a folder that must be new; an empty one may stand there.
void check_new_folder(const std::filesystem::path& path);

// Refuses the file of an option that could not be written, and makes the folder that it will lie in.
void prepare_output_file(const std::string& option, const std::filesystem::path& path);

// A whole text file. Refuses, before it is read, what is missing, no plain file, or larger than `most_bytes`; and then
// what holds binary data. `what` is said in complaints: "a configuration file".
std::string read_input_text(const std::filesystem::path& path, const std::string& what, uint64_t most_bytes);

}  // namespace trireme
