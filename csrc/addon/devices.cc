// Finds and opens devices. The CPU is built in. GPUs need libds_cuda.so.
#include "devices.h"

#include <map>
#include <mutex>
#include <optional>

#include "../comm/cpu_engine.h"
#include "../core/dynamic_library.h"
#include "../core/error.h"
#include "../cpu/cpu_device.h"
#include "../cuda/entry.h"

namespace ds::addon {
namespace {

/// The GPU back end's library and its functions. Never closed, because its devices stay open.
struct GpuLibrary {
  DynamicLibrary library;
  decltype(&ds_cuda_open) open;
  decltype(&ds_cuda_open_nccl) open_nccl;
  CudaProbe found{};
};

std::mutex candidates_mutex;

/// Returns the candidate files of the GPU back end, in order of preference. If empty, the file in
/// the addon's folder is used.
std::vector<std::string>& candidates() {
  static auto* files = new std::vector<std::string>();
  return *files;
}

std::vector<std::string> files_to_try() {
  std::lock_guard lock(candidates_mutex);
  if (!candidates().empty()) return candidates();
  return {DynamicLibrary::folder_of(reinterpret_cast<const void*>(&files_to_try)) +
          "/libds_cuda.so"};
}

/// Opens one file. Throws DS_LIBRARY if it does not load or belongs to another build.
GpuLibrary open_library(const std::string& file) {
  DynamicLibrary library =
      DynamicLibrary::open({"the GPU back end",
                            {file},
                            "This build has the CPU back end only: install the CUDA package of "
                            "the platform, such as @ds/native-linux-x64-cuda13, or build from "
                            "source where nvcc is installed."});
  const int interface = library.symbol<decltype(&ds_cuda_interface)>("ds_cuda_interface")();
  if (interface != kCudaInterface) {
    throw Error("DS_LIBRARY", "the GPU back end",
                text("interface ", kCudaInterface, " in ", library.path()), text(interface),
                "libds_cuda.so and ds_native.node come from different builds: install packages of "
                "the same version, or rebuild both.");
  }
  auto open = library.symbol<decltype(&ds_cuda_open)>("ds_cuda_open");
  auto open_nccl = library.symbol<decltype(&ds_cuda_open_nccl)>("ds_cuda_open_nccl");
  CudaProbe found{};
  library.symbol<decltype(&ds_cuda_probe)>("ds_cuda_probe")(&found);
  return {std::move(library), open, open_nccl, found};
}

/// Returns the first library that can use the GPUs, otherwise the first that opens. If the driver
/// is too old for the preferred CUDA, a package of an older CUDA may work.
GpuLibrary open_best() {
  std::optional<GpuLibrary> best;
  std::optional<Error> first;
  std::string others;
  for (const std::string& file : files_to_try()) {
    try {
      GpuLibrary opened = open_library(file);
      if (opened.found.message[0] == '\0') return opened;
      if (!best) best.emplace(std::move(opened));
    } catch (const Error& error) {
      if (first) {
        others += text("; ", error.what());
      } else {
        first = error;
      }
    }
  }
  if (best) return std::move(*best);
  throw Error(first->code, first->op, first->expected, first->got + others, first->hint);
}

/// Returns the opened library. Throws DS_LIBRARY on each call if no library can be opened.
GpuLibrary& gpu_library() {
  static GpuLibrary* opened = new GpuLibrary(open_best());
  return *opened;
}

GpuProbe probe_once() {
  GpuProbe out;
  try {
    const GpuLibrary& opened = gpu_library();
    out.library = opened.library.path();
    out.device_count = opened.found.device_count;
    out.driver_version = opened.found.driver_version;
    out.runtime_version = opened.found.runtime_version;
    out.message = opened.found.message;
  } catch (const Error& error) {
    out.message = error.hint.empty() ? error.what() : text(error.what(), ". ", error.hint);
  }
  return out;
}

}  // namespace

void set_gpu_libraries(std::vector<std::string> files) {
  std::lock_guard lock(candidates_mutex);
  candidates() = std::move(files);
}

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
