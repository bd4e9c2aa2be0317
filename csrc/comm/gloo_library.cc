// Opening libds_gloo.so, which lies beside the addon and needs an installed libgloo.
#include "../core/dynamic_library.h"
#include "../core/error.h"
#include "gloo/entry.h"

namespace ds::comm {
namespace {

struct GlooLibrary {
  DynamicLibrary library;
  decltype(&ds_gloo_connect) connect;
};

GlooLibrary open_library() {
  const std::string folder =
      DynamicLibrary::folder_of(reinterpret_cast<const void*>(&open_library));
  DynamicLibrary library = DynamicLibrary::open(
      {"Gloo", {folder + "/libds_gloo.so"},
       "Install Gloo (Debian and Ubuntu: libgloo0; libgloo-dev to build against it), or use the "
       "transport \"tcp\", which needs nothing."});
  const int interface = library.symbol<decltype(&ds_gloo_interface)>("ds_gloo_interface")();
  if (interface != kGlooInterface) {
    throw Error("DS_LIBRARY", "Gloo", text("interface ", kGlooInterface),
                text(interface),
                "libds_gloo.so and ds_native.node come from different builds: rebuild or reinstall "
                "both.");
  }
  auto connect = library.symbol<decltype(&ds_gloo_connect)>("ds_gloo_connect");
  return {std::move(library), connect};
}

}  // namespace

std::unique_ptr<Transport> open_gloo(const Rendezvous& request) {
  static GlooLibrary* opened = new GlooLibrary(open_library());  // never closed: it owns threads
  return std::unique_ptr<Transport>(opened->connect(request));
}

}  // namespace ds::comm
