// Weights that come from outside a run: read into a store, whatever the files' layout, type and number.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>

#include "trireme/base/tensor_files.h"
#include "trireme/optim/store.h"
#include "trireme/spec/source_model.h"

namespace trireme {

// A tensor of a file, as it is there; and the types of both worlds.
at::Tensor tensor_of(const FoundTensor& found);
DType dtype_of(at::ScalarType type);
at::ScalarType type_of(DType dtype);

// The files of a source, opened. Of a checkpoint their checksums are compared first; Hugging Face's layout has none,
// and its files are as long as their headers say.
std::unique_ptr<TensorFiles> open_weights(const SourceModel& source);

// The parameters among the tensors of a source, by our names.
std::map<std::string, FoundTensor> by_our_names(const SourceModel& source, const TensorFiles& files);

// Sets the parameters, which may be those of one stage, from the source. Adapters are left as they are: a source has
// none. Refuses what is missing, of another shape or, in the whole model, too much.
void load_weights(const SourceModel& source, const ParameterList& parameters, ParameterStore& store, bool whole_model);

}  // namespace trireme
