// The Python module: registers, nothing else.
#include <nanobind/nanobind.h>

NB_MODULE(_native, m) { m.doc() = "Trimaran's CPU executor."; }
