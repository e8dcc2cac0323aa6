// Reports this processor's features, so that the wheel can choose an engine (cpu_variants.cmake). It is a module of its
// own, compiled for the oldest processors: an engine that needs missing instructions must not be loaded.
#include <Python.h>

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

enum { LEAF_1_ECX, LEAF_7_EBX, LEAF_7_ECX, LEAF_71_EAX, N_REGISTERS };

// state: the XCR0 bits of the state that the system must save for the feature.
static const struct {
    const char * name;
    int          reg, bit;
    uint32_t     state;
} FEATURES[] = {
    { "AVX2", LEAF_7_EBX, 5, 0x06 },         { "FMA", LEAF_1_ECX, 12, 0x06 },
    { "F16C", LEAF_1_ECX, 29, 0x06 },        { "BMI2", LEAF_7_EBX, 8, 0x06 },
    { "AVX512F", LEAF_7_EBX, 16, 0xe6 },     { "AVX512DQ", LEAF_7_EBX, 17, 0xe6 },
    { "AVX512CD", LEAF_7_EBX, 28, 0xe6 },    { "AVX512BW", LEAF_7_EBX, 30, 0xe6 },
    { "AVX512VL", LEAF_7_EBX, 31, 0xe6 },    { "AVX512VNNI", LEAF_7_ECX, 11, 0xe6 },
    { "AVX512BF16", LEAF_71_EAX, 5, 0xe6 },
};

static void read_registers(uint32_t out[N_REGISTERS], uint32_t * state) {
    unsigned a, b, c, d;
    memset(out, 0, N_REGISTERS * sizeof(*out));
    *state = 0;
    if (__get_cpuid(1, &a, &b, &c, &d)) {
        out[LEAF_1_ECX] = c;
        if (c & (1u << 27)) {  // OSXSAVE: the system reports which state it saves
            uint32_t low, high;
            __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
            *state = low;
        }
    }
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        out[LEAF_7_EBX] = b;
        out[LEAF_7_ECX] = c;
        if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
            out[LEAF_71_EAX] = a;
        }
    }
}
#endif

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

// Bits of the system's two words.
static const struct {
    const char * name;
    unsigned long word;
    int          bit;
} FEATURES[] = {
    { "ASIMDHP", AT_HWCAP, 10 }, { "ASIMDDP", AT_HWCAP, 20 }, { "I8MM", AT_HWCAP2, 13 }, { "BF16", AT_HWCAP2, 14 },
};
#endif

static PyObject * features(PyObject * self, PyObject * none) {
    (void) self;
    (void) none;
    char names[256] = "";
#if defined(__x86_64__)
    uint32_t registers[N_REGISTERS], state;
    read_registers(registers, &state);
    for (size_t i = 0; i < sizeof(FEATURES) / sizeof(*FEATURES); ++i) {
        const int is_there = registers[FEATURES[i].reg] >> FEATURES[i].bit & 1;
        if (is_there && (state & FEATURES[i].state) == FEATURES[i].state) {
            strcat(names, FEATURES[i].name);
            strcat(names, " ");
        }
    }
#elif defined(__aarch64__) && defined(__linux__)
    for (size_t i = 0; i < sizeof(FEATURES) / sizeof(*FEATURES); ++i) {
        if (getauxval(FEATURES[i].word) >> FEATURES[i].bit & 1) {
            strcat(names, FEATURES[i].name);
            strcat(names, " ");
        }
    }
#endif
    return PyUnicode_FromString(names);
}

static PyMethodDef METHODS[] = {
    { "features", features, METH_NOARGS, "The instructions that engines are chosen by, with a space after each." },
    { NULL, NULL, 0, NULL },
};

static struct PyModuleDef MODULE = { PyModuleDef_HEAD_INIT, "_processor", NULL, -1, METHODS, NULL, NULL, NULL, NULL };

PyMODINIT_FUNC PyInit__processor(void) {
    return PyModule_Create(&MODULE);
}
