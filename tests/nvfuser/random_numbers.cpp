// The random numbers of nvFuser's device code, and of the generator that PyTorch's CUDA kernels draw from, on the CPU.
#include <cmath>
#include <cstdint>

static inline unsigned int __umulhi(unsigned int a, unsigned int b) {
  return (unsigned long long)a * b >> 32;
}

#include <curand_kernel.h>

namespace nvfuser {

template <typename T, int size>
struct Array {
  T values[size];
  T& operator[](int position) { return values[position]; }
  const T& operator[](int position) const { return values[position]; }
};

#include "nvfuser_device_code.inc"

}  // namespace nvfuser

extern "C" {

void nvfuser_numbers(uint64_t seed, uint64_t subsequence, uint64_t offset, uint32_t* words,
                     float* uniform, float* normal, double* uniform_double, double* normal_double) {
  auto made = nvfuser::philox(seed, subsequence, offset);
  for (int i = 0; i < 4; i++) {
    words[i] = made[i];
    uniform[i] = nvfuser::rng_uniformf(made, i);
    normal[i] = nvfuser::rng_normal_standardf(made, i);
  }
  for (int i = 0; i < 2; i++) {
    uniform_double[i] = nvfuser::rng_uniform(made, i);
    normal_double[i] = nvfuser::rng_normal_standard(made, i);
  }
}

void pytorch_numbers(uint64_t seed, uint64_t subsequence, uint64_t offset, uint32_t* words) {
  curandStatePhilox4_32_10_t state;
  curand_init(seed, subsequence, offset, &state);
  uint4 made = curand4(&state);
  words[0] = made.x;
  words[1] = made.y;
  words[2] = made.z;
  words[3] = made.w;
}

}
