// What must outlive a power cut: a file's bytes are synced before it gets its name, and the folder after that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "tests/data/temporary.h"
#include "tests/support/disk_calls.h"
#include "trireme/base/files.h"
#include "trireme/base/safetensors.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

class DurableTest : public testing::Test {
 protected:
  DurableTest() {
    auto name = process_folder() + "trireme-durable-XXXXXX";
    folder_ = fs::canonical(::mkdtemp(name.data()));
  }
  ~DurableTest() override { fs::remove_all(folder_); }

  fs::path folder_;
};

TEST_F(DurableTest, AFileIsSyncedThenNamedThenItsFolderIsSynced) {
  const auto path = folder_ / "file";
  const DiskCalls calls;
  write_atomically(path, "some text");
  const auto made = calls.all();
  ASSERT_EQ(made.size(), 3u) << testing::PrintToString(made);
  const auto temporary = made[0].path;
  EXPECT_NE(temporary, path);
  EXPECT_THAT(made, ElementsAre(synced(temporary), renamed(temporary, path), synced(folder_)));
  EXPECT_EQ(made[0].bytes, 9u) << "the file was synced before all of it was written";
}

TEST_F(DurableTest, AFolderIsSyncedThenNamedThenTheFolderAboveIsSynced) {
  fs::create_directories(folder_ / "here/partial");
  fs::create_directories(folder_ / "there");
  {
    const DiskCalls calls;
    rename_durably(folder_ / "here/partial", folder_ / "here/whole/");
    EXPECT_THAT(calls.all(),
                ElementsAre(synced(folder_ / "here/partial"), renamed(folder_ / "here/partial", folder_ / "here/whole"),
                            synced(folder_ / "here")));
  }
  const DiskCalls calls;
  rename_durably(folder_ / "here/whole", folder_ / "there/whole");
  EXPECT_THAT(calls.all(),
              ElementsAre(synced(folder_ / "here/whole"), renamed(folder_ / "here/whole", folder_ / "there/whole"),
                          synced(folder_ / "there"), synced(folder_ / "here")));
}

TEST_F(DurableTest, FoldersThatAreMadeKeepTheirNames) {
  const DiskCalls calls;
  make_folder(folder_ / "a/b");
  make_folder(folder_ / "a/b/");  // there already
  EXPECT_THAT(calls.all(), ElementsAre(synced(folder_), synced(folder_ / "a")));
}

TEST_F(DurableTest, AFileOfTensorsIsSyncedWhole) {
  const auto path = folder_ / "one.safetensors";
  const std::array<float, 4> numbers{1, 2, 3, 4};
  const DiskCalls calls;
  SafetensorsWriter writer(path, {{"numbers", DType::f32, {4}}});
  writer.append(std::as_bytes(std::span(numbers)));
  EXPECT_THAT(calls.all(), testing::IsEmpty());
  writer.finish();
  const auto made = calls.all();
  EXPECT_THAT(made, ElementsAre(synced(path)));
  EXPECT_EQ(made.at(0).bytes, fs::file_size(path));
}

}  // namespace
}  // namespace trireme
