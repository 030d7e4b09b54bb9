#include "host.h"

#include <cstdarg>
#include <cstdio>
#include <dlfcn.h>

namespace hotset {

constinit Host host{};

const char* host_resolve(void* caller) {
    // Python loads its extension modules with local symbols, so the global scope is not enough;
    // RTLD_NOLOAD takes a handle on what is there and changes nobody's visibility.
    Dl_info info{};
    void* object = nullptr;
    if (dladdr(caller, &info) != 0 && info.dli_fname != nullptr) {
        object = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    }
    auto find = [object](const char* name) {
        void* address = object != nullptr ? dlsym(object, name) : nullptr;
        return address != nullptr ? address : dlsym(RTLD_DEFAULT, name);
    };
    const char* missing = nullptr;
#define HOTSET_RESOLVE(name, result, arguments)                                                    \
    host.name = reinterpret_cast<result(*) arguments>(find(#name));                                \
    if (host.name == nullptr && missing == nullptr) {                                              \
        missing = #name;                                                                           \
    }
    HOTSET_HOST_FUNCTIONS(HOTSET_RESOLVE)
#undef HOTSET_RESOLVE
    if (object != nullptr) {
        dlclose(object);
    }
    return missing;
}

void say(const char* format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    std::fprintf(stderr, "hotset: %s\n", line);
}

} // namespace hotset
