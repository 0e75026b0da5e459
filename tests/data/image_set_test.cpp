#include "trireme/data/image_set.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <set>

#include "tests/data/temporary.h"
#include "trireme/data/step_loader.h"
#include "trireme/data/synthetic.h"

namespace trireme {
namespace {

std::vector<uint8_t> big_endian(std::initializer_list<uint32_t> words) {
  std::vector<uint8_t> bytes;
  for (const uint32_t word : words) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<uint8_t>(word >> shift));
  }
  return bytes;
}

// Pixel i of all images has the value 7 i, in bytes.
std::vector<uint8_t> some_pixels(size_t count) {
  std::vector<uint8_t> pixels(count);
  for (size_t i = 0; i < count; ++i) pixels[i] = static_cast<uint8_t>(7 * i);
  return pixels;
}

void write_idx(const TemporaryFolder& folder, const std::string& set, uint32_t count, uint32_t size) {
  append(folder / (set + "-images-idx3-ubyte"), big_endian({2051, count, size, size}));
  append(folder / (set + "-images-idx3-ubyte"), some_pixels(count * size * size));
  append(folder / (set + "-labels-idx1-ubyte"), big_endian({2049, count}));
  std::vector<uint8_t> labels(count);
  for (size_t i = 0; i < count; ++i) labels[i] = static_cast<uint8_t>(i % 3);
  append(folder / (set + "-labels-idx1-ubyte"), labels);
}

void write_cifar(const TemporaryFolder& folder, const std::string& name, uint8_t label) {
  for (int record = 0; record < 2; ++record) {
    append(folder / name, std::vector<uint8_t>{label});
    append(folder / name, some_pixels(3072));
  }
}

DataOptions options_of(const TemporaryFolder& folder, int64_t image, int64_t channels) {
  DataOptions options;
  options.kind = "images";
  options.path = folder / "";
  options.image = image;
  options.channels = channels;
  options.classes = 3;
  options.validation = 0.05;
  return options;
}

// As a model would get them.
Batch read(const Dataset& data, std::vector<int64_t> samples) {
  auto batch = data.get(samples);
  batch.inputs = data.decode(batch.inputs);
  return batch;
}

TEST(ImageSet, ReadsIdxAndNormalises) {
  TemporaryFolder folder;
  write_idx(folder, "train", 5, 8);
  write_idx(folder, "t10k", 2, 8);
  const auto data = open_dataset(options_of(folder, 8, 1));
  EXPECT_EQ(data.train->size(), 5);
  EXPECT_EQ(data.validation->size(), 2);
  EXPECT_EQ(data.train->vocab(), 3);
  const auto all = read(*data.train, {0, 1, 2, 3, 4});
  EXPECT_EQ(all.inputs.sizes(), at::IntArrayRef({5, 1, 8, 8}));
  EXPECT_NEAR(all.inputs.mean().item<double>(), 0, 1e-5);
  EXPECT_NEAR(all.inputs.std(false).item<double>(), 1, 1e-5);
  // Each value is its byte, moved and scaled.
  const auto bytes = at::tensor(some_pixels(5 * 64), at::kByte).to(at::kDouble).view({5, 1, 8, 8}) / 255;
  const auto expected = (bytes - bytes.mean()) / bytes.std(false);
  EXPECT_LT((all.inputs - expected).abs().max().item<double>(), 1e-5);
  EXPECT_TRUE(at::equal(all.targets, at::tensor({0, 1, 2, 0, 1}, at::kLong)));
  // Any order, one at a time, gives the same rows.
  EXPECT_TRUE(at::equal(read(*data.train, {3}).inputs[0], all.inputs[3]));
  // The test set by the training set's statistics: its bytes are the same as those of the first images.
  EXPECT_TRUE(at::equal(read(*data.validation, {0, 1}).inputs, all.inputs.slice(0, 0, 2)));
}

TEST(ImageSet, ReadsGzippedFiles) {
  TemporaryFolder folder;
  write_idx(folder, "train", 5, 8);
  const auto plain = read(*open_dataset(options_of(folder, 8, 1)).train, {0, 4});
  if (std::system(("gzip " + (folder / "train-images-idx3-ubyte").string()).c_str()) != 0) GTEST_SKIP() << "no gzip";
  const auto unpacked = read(*open_dataset(options_of(folder, 8, 1)).train, {0, 4});
  EXPECT_TRUE(at::equal(unpacked.inputs, plain.inputs));
  std::filesystem::resize_file(folder / "train-images-idx3-ubyte.gz", 100);
  const auto message = refusal_of([&] { open_dataset(options_of(folder, 8, 1)); });
  EXPECT_NE(message.find("train-images-idx3-ubyte.gz: cannot be unpacked"), std::string::npos) << message;
}

TEST(ImageSet, ReadsCifar) {
  TemporaryFolder folder;
  for (int i = 1; i <= 5; ++i) write_cifar(folder, fmt::format("data_batch_{}.bin", i), static_cast<uint8_t>(i % 3));
  auto options = options_of(folder, 32, 3);
  EXPECT_EQ(open_dataset(options).validation, nullptr);
  write_cifar(folder, "test_batch.bin", 2);
  const auto data = open_dataset(options);
  EXPECT_EQ(data.train->size(), 10);
  EXPECT_EQ(data.validation->size(), 2);
  const auto all = read(*data.train, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  EXPECT_TRUE(at::equal(all.targets, at::tensor({1, 1, 2, 2, 0, 0, 1, 1, 2, 2}, at::kLong)));
  // Each channel for itself.
  EXPECT_LT(all.inputs.mean({0, 2, 3}).abs().max().item<double>(), 1e-5);
  EXPECT_LT((all.inputs.std({0, 2, 3}, false) - 1).abs().max().item<double>(), 1e-5);
  options.validation = 0;
  EXPECT_EQ(open_dataset(options).validation, nullptr);
}

struct BadFolder {
  const char* what;
  std::function<void(const TemporaryFolder&)> spoil;
  const char* expected;
};

TEST(ImageSet, RefusesBadFiles) {
  const auto rewrite = [](const TemporaryFolder& folder, const char* name, const std::vector<uint8_t>& bytes) {
    std::filesystem::remove(folder / name);
    append(folder / name, bytes);
  };
  const std::vector<BadFolder> cases{
      {"a magic of another format",
       [&](auto& folder) { rewrite(folder, "train-images-idx3-ubyte", big_endian({2049, 5, 8, 8})); },
       "train-images-idx3-ubyte: not a file of images: it begins with 2049, where 2051 was expected"},
      {"half a header", [&](auto& folder) { rewrite(folder, "train-images-idx3-ubyte", big_endian({2051, 5})); },
       "train-images-idx3-ubyte: the file is cut short: it ends after 8 of the 16 bytes of its header"},
      {"missing pixels",
       [](auto& folder) { std::filesystem::resize_file(folder / "train-images-idx3-ubyte", 16 + 5 * 64 - 1); },
       "train-images-idx3-ubyte: its header promises 320 bytes, 319 follow"},
      {"a size that is no size",
       [&](auto& folder) { rewrite(folder, "train-images-idx3-ubyte", big_endian({2051, 5, 0, 8})); },
       "train-images-idx3-ubyte: the header is damaged"},
      {"images that are not square",
       [&](auto& folder) {
         rewrite(folder, "train-images-idx3-ubyte", big_endian({2051, 5, 16, 4}));
         append(folder / "train-images-idx3-ubyte", some_pixels(5 * 64));
       },
       "train-images-idx3-ubyte: images of 16 x 4 pixels are not square"},
      {"labels of fewer images",
       [&](auto& folder) { rewrite(folder, "train-labels-idx1-ubyte", {0, 0, 8, 1, 0, 0, 0, 1, 2}); },
       "train-labels-idx1-ubyte holds 1 labels"},
      {"a label that is no class",
       [&](auto& folder) { rewrite(folder, "train-labels-idx1-ubyte", {0, 0, 8, 1, 0, 0, 0, 5, 0, 1, 2, 3, 0}); },
       "train-images-idx3-ubyte: label 3 of image 3 is not below model.classes = 3"},
      {"no labels", [](auto& folder) { std::filesystem::remove(folder / "train-labels-idx1-ubyte"); },
       "holds no train-labels-idx1-ubyte, nor that with .gz"},
      {"no images", [](auto& folder) { std::filesystem::remove(folder / "train-images-idx3-ubyte"); },
       "holds neither train-images-idx3-ubyte"},
      {"half a record of CIFAR", [](auto& folder) { append(folder / "data_batch_1.bin", some_pixels(3073 + 5)); },
       "data_batch_1.bin: 3078 bytes are not a whole number of CIFAR-10's records of 3073"},
      {"a label that CIFAR does not have", [](auto& folder) { write_cifar(folder, "data_batch_1.bin", 10); },
       "data_batch_1.bin: label 10 of image 0 is not one of CIFAR-10's 10"},
      {"a missing batch of CIFAR", [](auto& folder) { write_cifar(folder, "data_batch_1.bin", 1); },
       "holds no data_batch_2.bin"},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.what);
    TemporaryFolder folder;
    write_idx(folder, "train", 5, 8);
    one.spoil(folder);
    const auto message = refusal_of([&] { open_dataset(options_of(folder, 8, 1)); });
    EXPECT_NE(message.find(one.expected), std::string::npos) << message;
  }
  TemporaryFolder folder;
  write_idx(folder, "train", 5, 8);
  auto options = options_of(folder, 28, 3);
  EXPECT_NE(refusal_of([&] {
              open_dataset(options);
            }).find("images of 8 x 8 pixels and 1 channel do not fit model.image = 28 and model.channels = 3"),
            std::string::npos);
  options.path = folder / "nowhere";
  EXPECT_NE(refusal_of([&] { open_dataset(options); }).find("nowhere is no folder"), std::string::npos);
}

TEST(ImageSet, AugmentsByThePositionAlone) {
  TemporaryFolder folder;
  write_idx(folder, "train", 5, 12);
  write_idx(folder, "t10k", 5, 12);
  auto options = options_of(folder, 12, 1);
  options.augments = true;
  const auto data = open_dataset(options);
  const auto augmented = [&](const Dataset& set, std::vector<int64_t> samples, std::vector<int64_t> positions) {
    auto batch = set.get(samples);
    set.augment(batch, positions);
    return set.decode(batch.inputs);
  };
  std::vector<int64_t> samples(60, 2), positions(60);
  std::iota(positions.begin(), positions.end(), 100);
  const auto together = augmented(*data.train, samples, positions);
  std::set<std::string> kinds;
  const auto plain = read(*data.train, {2}).inputs[0][0];
  const float black = (0 - statistics_of(read_images(folder / "").train).mean[0]) /
                      statistics_of(read_images(folder / "").train).deviation[0];
  const auto padded = at::constant_pad_nd(plain, {4, 4, 4, 4}, black);
  for (size_t i = 0; i < 60; ++i) {
    const auto mine = together[static_cast<int64_t>(i)][0];
    // Alone it is the same as among others.
    EXPECT_TRUE(at::equal(augmented(*data.train, {2}, {positions[i]})[0][0], mine));
    // It is one of the crops, as it is or flipped.
    std::string kind;
    for (int64_t y = 0; y < 9; ++y) {
      for (int64_t x = 0; x < 9; ++x) {
        const auto crop = padded.slice(0, y, y + 12).slice(1, x, x + 12);
        if (at::equal(crop, mine)) kind = fmt::format("{} {}", y, x);
        if (at::equal(crop.flip({1}), mine)) kind = fmt::format("{} {} flipped", y, x);
      }
    }
    EXPECT_NE(kind, "") << "position " << positions[i];
    kinds.insert(kind);
  }
  EXPECT_GT(kinds.size(), 35u);  // of 162
  // The loader augments what it loads for training; what is held out stays as it is.
  StepLoader loader(*data.train, SampleOrder(5, 4, 1), microbatches({1, 2}, 0), 3);
  const auto loaded = loader.next().microbatches[0];
  std::vector<int64_t> chosen;
  SampleOrder(5, 4, 1).fill(3, 1, 2, chosen);
  EXPECT_EQ(loaded.inputs.scalar_type(), at::kByte);
  EXPECT_TRUE(at::equal(data.train->decode(loaded.inputs), augmented(*data.train, chosen, {13, 14})));
  EXPECT_TRUE(at::equal(augmented(*data.validation, {1}, {13}), read(*data.validation, {1}).inputs));
}

TEST(SyntheticImages, AreAFunctionOfTheSampleWithAPattern) {
  const SyntheticImages images(1000, 2, 20, 4, 7);
  std::vector<int64_t> samples(600);
  std::iota(samples.begin(), samples.end(), 0);
  const auto batch = read(images, samples);
  EXPECT_LT(std::abs(batch.inputs.mean().item<double>()), 0.2);
  EXPECT_NEAR(batch.inputs.std().item<double>(), 1, 0.2);
  EXPECT_EQ(batch.inputs.sizes(), at::IntArrayRef({600, 2, 20, 20}));
  EXPECT_TRUE(at::equal(read(images, {17}).inputs[0], batch.inputs[17]));
  EXPECT_FALSE(at::equal(batch.inputs[17], batch.inputs[18]));
  // The mean of a class's images is its pattern: nearest to it are its own images.
  std::vector<at::Tensor> means;
  for (int64_t label = 0; label < 4; ++label) means.push_back(batch.inputs.index({batch.targets == label}).mean(0));
  const auto distances = at::stack([&] {
    std::vector<at::Tensor> columns;
    for (const auto& mean : means) columns.push_back((batch.inputs - mean).square().sum({1, 2, 3}));
    return columns;
  }());
  EXPECT_GT((distances.argmin(0) == batch.targets).to(at::kDouble).mean().item<double>(), 0.95);
}

}  // namespace
}  // namespace trireme
