#include "cli/gemm.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <stdexcept>

#if defined(SLUICE_CUDA)
#include <cuda_runtime.h>
#include <dlfcn.h>

#include "cli/bench_rows.h"
#include "cli/buffer.h"
#include "cli/caller_memory.h"
#include "cli/cuda_error.h"
#endif

namespace sluice::cli {

std::string text_of(const GemmShape& shape) { return fmt::format("{}x{}x{}", shape.m, shape.n, shape.k); }

std::optional<GemmShape> parse_gemm(const std::string& text) {
  constexpr std::string_view name = "gemm:";
  GemmShape shape;
  if (text == "gemm") return shape;
  if (!text.starts_with(name)) return {};
  const std::string sizes = text.substr(name.size()) + "x";
  const char* at = sizes.data();
  const char* const end = at + sizes.size();
  for (int* size : {&shape.m, &shape.n, &shape.k}) {
    const auto [stop, error] = std::from_chars(at, end, *size);
    if (error != std::errc() || *stop != 'x' || *size % 8 != 0 || *size < 512 || *size > 32768) return {};
    at = stop + 1;
    if (at == end && size != &shape.k) return {};
  }
  return at == end ? std::optional(shape) : std::nullopt;
}

#if defined(SLUICE_CUDA)

namespace {

// What is used of cuBLAS, declared here so that the build does not need it. Versions 12 and 13 agree on it.
struct Cublas {
  using Status = int;
  using Handle = void*;
  static constexpr int no_transpose = 0, transpose = 1, compute_fp32 = 68, default_algorithm = -1;

  Status (*create)(Handle*) = nullptr;
  Status (*destroy)(Handle) = nullptr;
  Status (*set_stream)(Handle, cudaStream_t) = nullptr;
  Status (*set_sms)(Handle, int) = nullptr;
  Status (*gemm)(Handle, int transpose_a, int transpose_b, int m, int n, int k, const void* alpha,
                 const void* a, cudaDataType a_type, int a_stride, const void* b, cudaDataType b_type,
                 int b_stride, const void* beta, void* c, cudaDataType c_type, int c_stride, int compute,
                 int algorithm) = nullptr;
  const char* (*text_of)(Status) = nullptr;
};

void* open_cublas() {
  std::string loader_says;
  for (const char* folder : {"", "/usr/local/cuda/lib64/"}) {
    for (const char* name : {"libcublas.so.13", "libcublas.so.12"}) {
      if (void* library = dlopen((std::string(folder) + name).c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
      const char* error = dlerror();
      if (loader_says.empty() && error != nullptr) loader_says = error;
    }
  }
  throw std::runtime_error(fmt::format(
      "--overlap gemm needs cuBLAS, and libcublas.so.13 or .12 is neither where the loader looks nor in "
      "/usr/local/cuda/lib64; install it (with the CUDA toolkit, or by pip install nvidia-cublas) and put "
      "its folder into LD_LIBRARY_PATH ({})",
      loader_says));
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr)
    throw std::runtime_error(fmt::format("--overlap gemm: this cuBLAS has no {}; 12 or 13 is needed", name));
}

// Never unloaded: it must outlive everything made with it.
const Cublas& cublas() {
  static const Cublas once = [] {
    void* const library = open_cublas();
    Cublas found;
    find(library, "cublasCreate_v2", found.create);
    find(library, "cublasDestroy_v2", found.destroy);
    find(library, "cublasSetStream_v2", found.set_stream);
    find(library, "cublasSetSmCountTarget", found.set_sms);
    find(library, "cublasGemmEx", found.gemm);
    find(library, "cublasGetStatusString", found.text_of);
    return found;
  }();
  return once;
}

void expect_cublas(Cublas::Status status, const char* call) {
  if (status != 0) throw std::runtime_error(fmt::format("{}: {}", call, cublas().text_of(status)));
}

// Values as varied as an operation's: a GPU draws less power, and clocks higher, on constant ones.
std::shared_ptr<void> matrix(std::int64_t elements, std::uint64_t key) {
  const std::size_t bytes = static_cast<std::size_t>(elements) * 2;
  const Buffer host(bytes);
  fill_row(host.data(), DataType::bf16, elements, key);
  auto data = share(MemoryKind::device, bytes);
  store(MemoryKind::device, data.get(), host.data(), bytes);
  return data;
}

class CublasGemms final : public Gemms {
 public:
  explicit CublasGemms(const GemmShape& shape) : cublas_(cublas()), shape_(shape) {
    a_ = matrix(std::int64_t{shape.m} * shape.k, 1);
    b_ = matrix(std::int64_t{shape.n} * shape.k, 2);
    c_ = share(MemoryKind::device,
               std::size_t{2} * static_cast<std::size_t>(shape.m) * static_cast<std::size_t>(shape.n));
    expect(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    for (cudaEvent_t* event : {&begin_, &end_}) expect(cudaEventCreate(event), "cudaEventCreate");
    expect_cublas(cublas_.create(&handle_), "cublasCreate");
    expect_cublas(cublas_.set_stream(handle_, stream_), "cublasSetStream");
  }

  ~CublasGemms() override {
    cudaStreamSynchronize(stream_);
    cublas_.destroy(handle_);
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }

  void limit(int sms) override { expect_cublas(cublas_.set_sms(handle_, sms), "cublasSetSmCountTarget"); }

  void start(int count) override {
    count_ = count;
    expect(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    for (int i = 0; i < count; ++i) launch();
    expect(cudaEventRecord(end_, stream_), "cudaEventRecord");
  }

  void await_turn() override { expect(cudaEventSynchronize(begin_), "cudaEventSynchronize"); }

  double finish() override {
    float ms = 0;
    expect(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    expect(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return static_cast<double>(ms) * 1e3 / count_;
  }

 private:
  // Row by row A is m x k, B is stored n x k, as the weights of a linear layer are, and C is m x n. cuBLAS
  // counts by columns, so for it this is the n x m matrix B * A.
  void launch() {
    const float one = 1, zero = 0;
    const auto [m, n, k] = shape_;
    expect_cublas(cublas_.gemm(handle_, Cublas::transpose, Cublas::no_transpose, n, m, k, &one, b_.get(),
                               CUDA_R_16BF, k, a_.get(), CUDA_R_16BF, k, &zero, c_.get(), CUDA_R_16BF, n,
                               Cublas::compute_fp32, Cublas::default_algorithm),
                  "cublasGemmEx");
  }

  const Cublas& cublas_;
  GemmShape shape_;
  std::shared_ptr<void> a_, b_, c_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  Cublas::Handle handle_ = nullptr;
  int count_ = 1;
};

}  // namespace

std::unique_ptr<Gemms> make_gemms(const GemmShape& shape) { return std::make_unique<CublasGemms>(shape); }

#else

std::unique_ptr<Gemms> make_gemms(const GemmShape&) {
  throw std::runtime_error("this build has no CUDA, and so no GEMMs for a GPU");
}

#endif

}  // namespace sluice::cli
