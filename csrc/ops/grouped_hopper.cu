// Launches the grouped products on wgmma and TMA. Returns false if the GPU has no code for them.
#include "grouped_hopper_product.cuh"

#include "grouped_hopper.cuh"

namespace ds::cuda {
namespace {

template <class T, Form kForm, bool kGather>
void launch(const char* op, const Product<T>& p, CudaContext& ctx) {
  using Shape = HopperProductShape<256, 4>;
  constexpr auto kernel = hopper_product_kernel<T, kForm, Shape, kGather>;
  constexpr size_t kBytes = hopper_product_bytes<T, Shape>;
  static_assert(kBytes <= 227 * 1024, "the shared memory of a thread block");
  DS_CUDA(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes)),
      op);
  const HopperProduct<T> all = hopper_product<T, kForm, Shape, kGather>(op, p, ctx.counter());
  kernel<<<ctx.sm_count, Shape::threads, kBytes, ctx.stream>>>(all);
  DS_CUDA_LAUNCHED(op);
}

}  // namespace

template <class T, Form kForm>
bool run_hopper_product(const char* op, const Product<T>& p, CudaContext& ctx) {
  // rows_by_columns (the gradient of sorted rows) is compiled without gathers.
  if (!ctx.code.hopper || p.m == 0 || (p.rows && kForm == Form::rows_by_columns)) return false;
  if (p.rows) launch<T, kForm, kForm != Form::rows_by_columns>(op, p, ctx);
  else launch<T, kForm, false>(op, p, ctx);
  return true;
}

#define DS_PRODUCTS(T)                                                                          \
  template bool run_hopper_product<T, Form::rows_by_rows>(const char*, const Product<T>&,       \
                                                          CudaContext&);                        \
  template bool run_hopper_product<T, Form::rows_by_columns>(const char*, const Product<T>&,    \
                                                             CudaContext&);                     \
  template bool run_hopper_product<T, Form::columns_by_columns>(const char*, const Product<T>&, \
                                                                CudaContext&);
DS_PRODUCTS(__nv_bfloat16)
DS_PRODUCTS(__half)
#undef DS_PRODUCTS

}  // namespace ds::cuda
