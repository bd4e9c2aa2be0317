// Opens libds_gloo.so in the addon's folder and passes it a group's connections.
#include "../core/dynamic_library.h"
#include "../core/error.h"
#include "gloo/entry.h"
#include "mesh.h"

namespace ds::comm {
namespace {

struct GlooLibrary {
  DynamicLibrary library;
  decltype(&ds_gloo_open) open;
};

GlooLibrary open_library() {
  const std::string folder =
      DynamicLibrary::folder_of(reinterpret_cast<const void*>(&open_library));
  DynamicLibrary library = DynamicLibrary::open(
      {"Gloo",
       {folder + "/libds_gloo.so"},
       "Collectives between CPUs run on Gloo. The prebuilt package contains it. A build from "
       "source needs libgloo-dev at build time (apt-get install libgloo-dev, then build again) "
       "and libgloo0 at run time."});
  const int interface = library.symbol<decltype(&ds_gloo_interface)>("ds_gloo_interface")();
  if (interface != kGlooInterface) {
    throw Error("DS_LIBRARY", "Gloo", text("interface ", kGlooInterface), text(interface),
                "libds_gloo.so and ds_native.node come from different builds: rebuild or reinstall "
                "both.");
  }
  auto open = library.symbol<decltype(&ds_gloo_open)>("ds_gloo_open");
  return {std::move(library), open};
}

}  // namespace

std::unique_ptr<Transport> open_gloo(const Rendezvous& request) {
  static GlooLibrary* opened = new GlooLibrary(open_library());  // never closed: it owns threads
  const std::vector<Socket> connections = connect_mesh(request);
  std::vector<int> descriptors;
  for (const Socket& connection : connections) descriptors.push_back(connection.get());
  return std::unique_ptr<Transport>(opened->open(request.rank, descriptors));
}

}  // namespace ds::comm
