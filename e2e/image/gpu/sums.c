/* Adds numbers on the first GPU that this process can use, by the library of NVIDIA's driver alone. Prints the number
 * of GPUs, that the sums are right, and the name of the GPU. The library is found as every program of an image finds
 * it: by the loader's cache. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum { NUMBERS = 1 << 20, THREADS = 256, NAME = 128 };

/* c[i] = a[i] + b[i]. The driver compiles it for the GPU. */
static const char *const CODE =
    ".version 7.0\n"
    ".target sm_70\n"
    ".address_size 64\n"
    ".visible .entry add(.param .u64 pa, .param .u64 pb, .param .u64 pc) {\n"
    "  .reg .b32 %r<5>;\n"
    "  .reg .b64 %d<8>;\n"
    "  .reg .f32 %f<4>;\n"
    "  ld.param.u64 %d1, [pa];\n"
    "  ld.param.u64 %d2, [pb];\n"
    "  ld.param.u64 %d3, [pc];\n"
    "  mov.u32 %r1, %ctaid.x;\n"
    "  mov.u32 %r2, %ntid.x;\n"
    "  mov.u32 %r3, %tid.x;\n"
    "  mad.lo.s32 %r4, %r1, %r2, %r3;\n"
    "  mul.wide.s32 %d4, %r4, 4;\n"
    "  add.s64 %d5, %d1, %d4;\n"
    "  add.s64 %d6, %d2, %d4;\n"
    "  add.s64 %d7, %d3, %d4;\n"
    "  ld.global.f32 %f1, [%d5];\n"
    "  ld.global.f32 %f2, [%d6];\n"
    "  add.f32 %f3, %f1, %f2;\n"
    "  st.global.f32 [%d7], %f3;\n"
    "  ret;\n"
    "}\n";

static void *library;

static void *function(const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "the driver's library has no %s\n", name);
        exit(4);
    }
    return found;
}

static void check(const char *what, int status) {
    if (status) {
        fprintf(stderr, "%s: CUDA error %d\n", what, status);
        exit(5);
    }
}

/* Calls a function of the library, which returns 0 or an error. */
#define CALL(name, types, ...) check(#name, ((int(*) types)function(#name))(__VA_ARGS__))

int main(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "no GPU: %s\n", dlerror());
        return 3;
    }
    int devices = 0, device = 0;
    char name[NAME] = "";
    void *context = NULL, *module = NULL, *add = NULL;
    CALL(cuInit, (unsigned), 0);
    CALL(cuDeviceGetCount, (int *), &devices);
    CALL(cuDeviceGet, (int *, int), &device, 0);
    CALL(cuDeviceGetName, (char *, int, int), name, NAME, device);
    CALL(cuCtxCreate_v2, (void **, unsigned, int), &context, 0, device);
    CALL(cuModuleLoadData, (void **, const void *), &module, CODE);
    CALL(cuModuleGetFunction, (void **, void *, const char *), &add, module, "add");

    static float values[3][NUMBERS];
    unsigned long long memory[3];
    for (int i = 0; i < NUMBERS; i++) {
        values[0][i] = (float)i;
        values[1][i] = 0.5f;
    }
    for (int array = 0; array < 3; array++) {
        CALL(cuMemAlloc_v2, (unsigned long long *, size_t), &memory[array], sizeof values[array]);
        CALL(cuMemcpyHtoD_v2, (unsigned long long, const void *, size_t), memory[array], values[array],
             sizeof values[array]);
    }
    void *arguments[] = {&memory[0], &memory[1], &memory[2]};
    CALL(cuLaunchKernel,
         (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **), add,
         NUMBERS / THREADS, 1, 1, THREADS, 1, 1, 0, NULL, arguments, NULL);
    CALL(cuCtxSynchronize, (void), );
    CALL(cuMemcpyDtoH_v2, (void *, unsigned long long, size_t), values[2], memory[2], sizeof values[2]);
    for (int i = 0; i < NUMBERS; i++) {
        if (values[2][i] != (float)i + 0.5f) {
            fprintf(stderr, "sum %d is %f\n", i, values[2][i]);
            return 6;
        }
    }
    printf("%d GPU, %d sums on %s\n", devices, NUMBERS, name);
    return 0;
}
