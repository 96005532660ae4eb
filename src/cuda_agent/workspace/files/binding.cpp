// Fixed file: the judge puts its own copy here before every build.
#include <pybind11/pybind11.h>

#include "binding_registry.h"

// Written out rather than by PYBIND11_MODULE: from pybind11 3 on, that hands out the module made first
// under a name, and several extensions called cuda_extension may live in one process.
extern "C" PYBIND11_EXPORT PyObject* PyInit_cuda_extension() {
    static PyModuleDef definition;
    pybind11::detail::get_internals();
    try {
        auto module = pybind11::module_::create_extension_module("cuda_extension", nullptr, &definition);
        for (auto* entry = binding_registry::first(); entry != nullptr; entry = entry->next) {
            entry->function(module);
        }
        return module.ptr();
    }
    PYBIND11_CATCH_INIT_EXCEPTIONS
    return nullptr;
}
