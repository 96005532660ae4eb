// Fixed file: the judge puts its own copy here before every build.
#include <pybind11/pybind11.h>

#include "binding_registry.h"

PYBIND11_MODULE(cuda_extension, module) {
    for (auto* entry = binding_registry::first(); entry != nullptr; entry = entry->next) {
        entry->function(module);
    }
}
