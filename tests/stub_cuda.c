/* CUDA where there is none, as far as making a session of onnxruntime asks for it: memory is the host's, and the device
   is one of sm90. Kernels are never run; what is not here does nothing and gives 0. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static char handle[256]; /* of a stream, an event, a library: nobody looks into it */

/* The fields of cudaDeviceProp that are asked for, at their offsets in the headers of CUDA 13. */
enum { PROPERTIES = 1008, TOTAL_MEMORY = 288, SHARED_MEMORY = 296, WARP = 308, THREADS = 320, MAJOR = 360, PROCESSORS = 384 };

static void put(char *properties, int offset, int value) { memcpy(properties + offset, &value, sizeof value); }
static void put_bytes(char *properties, int offset, uint64_t value) { memcpy(properties + offset, &value, sizeof value); }
static int allocated(void **p, size_t bytes) { return posix_memalign(p, 256, bytes ? bytes : 1); }
static int made(void **p) { *p = handle; return 0; }

int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int cudaGetDeviceProperties(char *properties, int device) {
  memset(properties, 0, PROPERTIES);
  strcpy(properties, "stub");
  put_bytes(properties, TOTAL_MEMORY, 80ull << 30);
  put_bytes(properties, SHARED_MEMORY, 48 << 10);
  put(properties, WARP, 32);
  put(properties, THREADS, 1024);
  put(properties, MAJOR, 9);
  put(properties, PROCESSORS, 132);
  return 0;
}
int cudaDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 75 ? 9 : 0; return 0; }
int cudaMemGetInfo(size_t *free, size_t *total) { *free = *total = 80ull << 30; return 0; }
int cudaDriverGetVersion(int *version) { *version = 13000; return 0; }
int cudaRuntimeGetVersion(int *version) { *version = 13000; return 0; }
int cudaMalloc(void **p, size_t bytes) { return allocated(p, bytes); }
int cudaMallocHost(void **p, size_t bytes) { return allocated(p, bytes); }
int cudaHostAlloc(void **p, size_t bytes, unsigned flags) { return allocated(p, bytes); }
int cudaFree(void *p) { free(p); return 0; }
int cudaFreeHost(void *p) { free(p); return 0; }
static size_t to_host; // kind 2 copies from the device
static void copy(void *to, const void *from, size_t bytes, int kind) {
  memcpy(to, from, bytes);
  to_host += kind == 2 ? bytes : 0;
}
size_t stub_bytes_to_host() { return to_host; }
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) { copy(to, from, bytes, kind); return 0; }
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) { copy(to, from, bytes, kind); return 0; }
int cudaMemset(void *p, int value, size_t bytes) { memset(p, value, bytes); return 0; }
int cudaMemsetAsync(void *p, int value, size_t bytes, void *stream) { memset(p, value, bytes); return 0; }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return made(stream); }
int cudaEventCreateWithFlags(void **event, unsigned flags) { return made(event); }
const char *cudaGetErrorString(int error) { return "stub"; }
const char *cudaGetErrorName(int error) { return "stub"; }
void **__cudaRegisterFatBinary(void *binary) { return (void **)handle; }
int cublasCreate_v2(void **handle_) { return made(handle_); }
int cublasLtCreate(void **handle_) { return made(handle_); }
