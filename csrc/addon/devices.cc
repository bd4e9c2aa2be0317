// Finds and opens devices. The CPU is built in; GPUs come from libds_cuda.so in the addon's folder.
#include "devices.h"

#include <map>
#include <mutex>

#include "../comm/cpu_engine.h"
#include "../core/dynamic_library.h"
#include "../core/error.h"
#include "../cpu/cpu_device.h"
#include "../cuda/entry.h"

namespace ds::addon {
namespace {

/// The GPU back end's library and its entry points. Never closed, because its devices stay open.
struct GpuLibrary {
  DynamicLibrary library;
  decltype(&ds_cuda_probe) probe;
  decltype(&ds_cuda_open) open;
  decltype(&ds_cuda_open_nccl) open_nccl;
};

GpuLibrary open_library() {
  const std::string folder =
      DynamicLibrary::folder_of(reinterpret_cast<const void*>(&open_library));
  DynamicLibrary library =
      DynamicLibrary::open({"the GPU back end",
                            {folder + "/libds_cuda.so"},
                            "This build has the CPU back end only: build it where nvcc is "
                            "installed, or install a prebuilt package."});
  const int interface = library.symbol<decltype(&ds_cuda_interface)>("ds_cuda_interface")();
  if (interface != kCudaInterface) {
    throw Error(
        "DS_LIBRARY", "the GPU back end", text("interface ", kCudaInterface), text(interface),
        "libds_cuda.so and ds_native.node come from different builds: rebuild or reinstall both.");
  }
  auto probe = library.symbol<decltype(&ds_cuda_probe)>("ds_cuda_probe");
  auto open = library.symbol<decltype(&ds_cuda_open)>("ds_cuda_open");
  auto open_nccl = library.symbol<decltype(&ds_cuda_open_nccl)>("ds_cuda_open_nccl");
  return {std::move(library), probe, open, open_nccl};
}

/// Throws DS_LIBRARY, on every call, if the library is unusable.
GpuLibrary& gpu_library() {
  static GpuLibrary* opened = new GpuLibrary(open_library());
  return *opened;
}

GpuProbe probe_once() {
  GpuProbe out;
  try {
    CudaProbe found{};
    gpu_library().probe(&found);
    out.library_found = true;
    out.device_count = found.device_count;
    out.driver_version = found.driver_version;
    out.runtime_version = found.runtime_version;
    out.message = found.message;
  } catch (const Error& error) {
    out.message = error.hint.empty() ? error.what() : text(error.what(), ". ", error.hint);
  }
  return out;
}

}  // namespace

const GpuProbe& probe_gpus() {
  static const GpuProbe* probe = new GpuProbe(probe_once());
  return *probe;
}

Device& open_device(size_t number) {
  if (number == 0) return cpu::cpu_device();
  const GpuProbe& probe = probe_gpus();
  if (number > static_cast<size_t>(probe.device_count)) {
    throw Error(
        "DS_DEVICE", "device", text("a usable GPU ", number - 1), text(probe.device_count, " GPUs"),
        probe.message.empty() ? "Run `ds env` to see what was found, or use the device \"cpu\"."
                              : probe.message);
  }
  const int index = static_cast<int>(number) - 1;
  static std::mutex mutex;
  static auto* opened =
      new std::map<int, Device*>();  // never destroyed: buffers may outlive statics
  std::lock_guard lock(mutex);
  Device*& device = (*opened)[index];
  if (!device) device = gpu_library().open(index);
  return *device;
}

std::shared_ptr<comm::Engine> open_engine(const comm::Rendezvous& rendezvous, Device& device) {
  if (&device != &cpu::cpu_device()) {
    return std::shared_ptr<comm::Engine>(gpu_library().open_nccl(rendezvous, device));
  }
  return std::make_shared<comm::CpuEngine>(rendezvous.rank, rendezvous.size,
                                           comm::open_gloo(rendezvous));
}

}  // namespace ds::addon
