// Fixed over tuning and over candidates, so that its object is compiled once a machine.
//
// run(entry, tensors, config): hands the data pointers of the tensors to playbook_run, which is generated.
// pack(source, target): copies a strided tensor into a contiguous one of the same shape.
#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>

#include "../binding_registry.h"

extern "C" const char* playbook_run(int entry, void* const* p, const int64_t* config, void* stream);
extern "C" void playbook_pack(const char* source, char* target, int64_t itemsize, int dims, const int64_t* sizes,
                              const int64_t* strides, void* stream);

namespace {

void run(int entry, const std::vector<torch::Tensor>& tensors, const std::vector<int64_t>& config) {
  void* pointers[1024];
  if (tensors.size() > 1024) throw std::runtime_error("more than 1024 tensors");
  for (size_t k = 0; k < tensors.size(); ++k) pointers[k] = const_cast<void*>(tensors[k].const_data_ptr());
  if (const char* problem = playbook_run(entry, pointers, config.data(), nullptr)) throw std::runtime_error(problem);
}

void pack(const torch::Tensor& source, const torch::Tensor& target) {
  playbook_pack((const char*)source.const_data_ptr(), (char*)target.data_ptr(), source.element_size(),
                (int)source.dim(), source.sizes().data(), source.strides().data(), nullptr);
}

void define(pybind11::module& module) {
  module.def("run", &run);
  module.def("pack", &pack);
}

}  // namespace

REGISTER_BINDING(playbook, define);
