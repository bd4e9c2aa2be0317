// Replaces a header that Gloo's headers include and that Debian's libgloo-dev lacks. It declares
// only the layouts of Gloo's references to buffers. The build uses it if the real header is
// missing.
#pragma once

#include <memory>

namespace gloo {

/// A short-lived reference to an object. The owner's destructor waits until it is released.
template <class T>
class NonOwningPtr {
  std::shared_ptr<T> pointer_;
};

/// A reference that tells whether the object is alive.
template <class T>
class WeakNonOwningPtr {
  std::weak_ptr<T> pointer_;
};

}  // namespace gloo
