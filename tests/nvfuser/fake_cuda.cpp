// Stands in for the CUDA runtime, the driver and PyTorch's CUDA library, on a machine without a GPU.
//
// It describes one device, like an H100, so that nvFuser schedules, generates and compiles kernels for it. Nothing can be
// launched. Loaded with global visibility before PyTorch asks for these functions; the names are those of the C++ ABI.

#include <cuda_runtime_api.h>

#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

cudaDeviceProp describe() {
  cudaDeviceProp device{};
  std::strcpy(device.name, "none, like an H100");
  device.major = 9;
  device.minor = 0;
  device.multiProcessorCount = 132;
  device.warpSize = 32;
  device.maxThreadsPerBlock = 1024;
  device.maxThreadsPerMultiProcessor = 2048;
  device.maxBlocksPerMultiProcessor = 32;
  device.maxThreadsDim[0] = 1024;
  device.maxThreadsDim[1] = 1024;
  device.maxThreadsDim[2] = 64;
  device.maxGridSize[0] = 2147483647;
  device.maxGridSize[1] = 65535;
  device.maxGridSize[2] = 65535;
  device.regsPerBlock = 65536;
  device.regsPerMultiprocessor = 65536;
  device.sharedMemPerBlock = 49152;
  device.sharedMemPerBlockOptin = 232448;
  device.sharedMemPerMultiprocessor = 233472;
  device.reservedSharedMemPerBlock = 1024;
  device.l2CacheSize = 52428800;
  device.memoryBusWidth = 5120;
  device.totalGlobalMem = std::size_t{80} << 30;
  return device;
}

cudaDeviceProp* properties() {
  static cudaDeviceProp device = describe();
  return &device;
}

// What the driver is asked for by name. All succeed, and most do nothing.

int succeed() { return 0; }

int error_text(int, const char** text) {
  *text = "none";
  return 0;
}

int any_handle(void** handle, ...) {
  static char something;
  *handle = &something;
  return 0;
}

int no_attribute(int* value, int, void*) {
  *value = 0;
  return 0;
}

int two_blocks(int* value, void*, int, std::size_t) {
  *value = 2;
  return 0;
}

int driver_version(int* version) {
  *version = 13000;
  return 0;
}

struct DriverFunction {
  const char* part_of_name;
  void* function;
};

void* driver_function(const char* name) {
  const DriverFunction known[] = {
      {"GetErrorName", reinterpret_cast<void*>(error_text)},
      {"GetErrorString", reinterpret_cast<void*>(error_text)},
      {"cuFuncGetAttribute", reinterpret_cast<void*>(no_attribute)},
      {"cuModuleGetFunction", reinterpret_cast<void*>(any_handle)},
      {"cuModuleLoad", reinterpret_cast<void*>(any_handle)},
      {"Occupancy", reinterpret_cast<void*>(two_blocks)},
      {"cuDriverGetVersion", reinterpret_cast<void*>(driver_version)},
  };
  for (const DriverFunction& entry : known) {
    if (std::strstr(name, entry.part_of_name) != nullptr) {
      return entry.function;
    }
  }
  return reinterpret_cast<void*>(succeed);
}

}  // namespace

// The CUDA runtime.

EXPORTED cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaGetDeviceProperties(cudaDeviceProp* device, int) {
  *device = *properties();
  return cudaSuccess;
}

EXPORTED cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = 1;
  if (attribute == cudaDevAttrComputeCapabilityMajor) *value = properties()->major;
  if (attribute == cudaDevAttrComputeCapabilityMinor) *value = properties()->minor;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* result) {
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  *function = driver_function(name);
  return cudaSuccess;
}

// c10::cuda: device_count, current_device, ExchangeDevice, MaybeSetDevice, GetDevice, SetDevice, and the streams.

struct Stream {
  std::int64_t pool;
  std::int64_t device;
};

EXPORTED signed char _ZN3c104cuda12device_countEv() { return 1; }
EXPORTED signed char _ZN3c104cuda14current_deviceEv() { return 0; }
EXPORTED signed char _ZN3c104cuda14ExchangeDeviceEa(signed char) { return 0; }
EXPORTED signed char _ZN3c104cuda14MaybeSetDeviceEa(signed char) { return 0; }
EXPORTED int _ZN3c104cuda9GetDeviceEPa(signed char* device) {
  *device = 0;
  return 0;
}
EXPORTED int _ZN3c104cuda9SetDeviceEab(signed char, bool) { return 0; }
EXPORTED Stream _ZN3c104cuda20getCurrentCUDAStreamEa(signed char) { return Stream{1, 0}; }
EXPORTED Stream _ZN3c104cuda20getDefaultCUDAStreamEa(signed char) { return Stream{1, 0}; }
EXPORTED void* _ZNK3c104cuda10CUDAStream6streamEv(void*) { return nullptr; }

// at::cuda: getCurrentDeviceProperties, getDeviceProperties, warp_size, jit::initializeCudaContext.

EXPORTED cudaDeviceProp* _ZN2at4cuda26getCurrentDevicePropertiesEv() { return properties(); }
EXPORTED cudaDeviceProp* _ZN2at4cuda19getDevicePropertiesEa(signed char) { return properties(); }
EXPORTED int _ZN2at4cuda9warp_sizeEv() { return 32; }
EXPORTED void _ZN2at4cuda3jit21initializeCudaContextEv() {}

// Where nvFuser allocates outputs and work space: tensors without data.

namespace at::native {
__attribute__((visibility("default"))) at::Tensor empty_cuda(
    c10::IntArrayRef size,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>,
    std::optional<c10::Device>,
    std::optional<bool>,
    std::optional<c10::MemoryFormat>) {
  return at::empty(size, at::TensorOptions().dtype(dtype.value_or(at::kFloat)).device(at::kMeta));
}

__attribute__((visibility("default"))) at::Tensor empty_strided_cuda(
    c10::IntArrayRef size,
    c10::IntArrayRef stride,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>,
    std::optional<c10::Device>,
    std::optional<bool>) {
  return at::empty_strided(
      size, stride, at::TensorOptions().dtype(dtype.value_or(at::kFloat)).device(at::kMeta));
}
}  // namespace at::native
