#!/bin/bash
# Builds kernels/ into cuda_extension.so and says how long it took.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
start=$(date +%s%N)
python3 -m utils.compile
status=$?
end=$(date +%s%N)
printf '[TIME] Compilation took %d.%02ds\n' $(((end - start) / 1000000000)) $(((end - start) / 10000000 % 100))
exit $status
