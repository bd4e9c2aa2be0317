// Replaces a header that Gloo's own headers include and Debian's libgloo-dev omits. It has only the
// layouts of Gloo's references to buffers. The build uses it only if the real header is missing.
#pragma once

#include <memory>

namespace gloo {

/// A short-lived reference to an object; the owner's destructor waits for its release.
template <class T>
class NonOwningPtr {
  std::shared_ptr<T> pointer_;
};

/// Holds whether the object still lives.
template <class T>
class WeakNonOwningPtr {
  std::weak_ptr<T> pointer_;
};

}  // namespace gloo
