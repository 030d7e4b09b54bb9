#include "handshake.h"

#include <bit>
#include <cstring>
#include <utility>

#include "host.h"

namespace hotset {

constinit Ops ops{};

namespace {

using namespace ggml;

// A table of functions of which each notes its own place. The host's public call then tells at
// which place of the table the host looks. Any signature will do: arguments travel in registers
// and are ignored, and `answer` fills the register of the result.
constexpr size_t NUM_PLACES = 24;
constinit uint64_t called = 0;
constinit uintptr_t answer = 0;

template <size_t place>
uintptr_t note() {
    called |= uint64_t{1} << place;
    return answer;
}

using Note = uintptr_t (*)();

struct NoteTable {
    Note places[NUM_PLACES];
};

template <size_t... place>
constexpr NoteTable make_notes(std::index_sequence<place...>) {
    return {{note<place>...}};
}

constexpr NoteTable NOTES = make_notes(std::make_index_sequence<NUM_PLACES>{});

constexpr uint64_t place_of(size_t offset) { return uint64_t{1} << (offset / sizeof(Note)); }

// Was exactly the function at `offset` bytes of its table called since the last question?
bool only(size_t offset) { return std::exchange(called, 0) == place_of(offset); }

// Fills the table at the start of `object` with notes; the members behind it keep their values.
template <class Table>
void fill(Table& table) {
    static_assert(sizeof(Table) <= sizeof NOTES);
    std::memcpy(&table, &NOTES, sizeof(Table));
}

// A distinct address that is never looked at.
template <class T>
T* marker(int which) {
    alignas(16) static constinit char places[64] = {};
    return reinterpret_cast<T*>(places + 16 * which);
}

// Room behind each structure, filled with notes too: a host with longer tables reads these.
template <class T>
struct Roomy {
    T object;
    NoteTable room = NOTES;
};

const char* check_tensor(Context* context) {
    Tensor* a = host.ggml_new_tensor_4d(context, TYPE_F32, 8, 3, 5, 2);
    const int64_t ne[] = {8, 3, 5, 2};
    const size_t nb[] = {4, 32, 96, 480};
    if (host.ggml_get_name(a) != a->name) {
        return "tensor layout: name";
    }
    if (a->type != TYPE_F32 || std::memcmp(a->ne, ne, sizeof ne) != 0 ||
        std::memcmp(a->nb, nb, sizeof nb) != 0 || host.ggml_nelements(a) != 240 ||
        host.ggml_nbytes(a) != 960) {
        return "tensor layout: type or shape";
    }
    Tensor* i = host.ggml_new_tensor_4d(context, TYPE_I32, 1, 1, 1, 1);
    if (i->type != TYPE_I32 || host.ggml_type_size(TYPE_I32) != 4) {
        return "number of the type I32";
    }
    if (host.ggml_type_size(TYPE_I64) != 8) {
        return "number of the type I64";
    }
    Tensor* view = host.ggml_view_1d(context, a, 4, 64);
    if (view->view_src != a || view->view_offs != 64) {
        return "tensor layout: view";
    }
    alignas(64) static constinit char memory[1024] = {};
    Buffer* buffer = host.ggml_backend_cpu_buffer_from_ptr(memory, sizeof memory);
    host.ggml_backend_tensor_alloc(buffer, a, memory);
    const bool same = a->buffer == buffer && a->data == memory && host.ggml_get_data(a) == memory;
    host.ggml_backend_buffer_free(buffer);
    return same ? nullptr : "tensor layout: buffer or data";
}

// The number of an operation, from a tensor that the host's own constructor made.
bool number_of(const Tensor* made, const char* name, int& number) {
    number = made->op;
    return std::strcmp(host.ggml_op_desc(made), name) == 0;
}

const char* check_ops(Context* context) {
    Tensor* weights = host.ggml_new_tensor_4d(context, TYPE_F32, 8, 4, 2, 1);
    Tensor* rows = host.ggml_new_tensor_4d(context, TYPE_F32, 8, 2, 3, 1);
    Tensor* ids = host.ggml_new_tensor_4d(context, TYPE_I32, 2, 3, 1, 1);
    Tensor* product = host.ggml_mul_mat_id(context, weights, rows, ids);
    if (product->src[0] != weights || product->src[1] != rows || product->src[2] != ids) {
        return "tensor layout: sources";
    }
    if (product->ne[0] != 4 || product->ne[1] != 2 || product->ne[2] != 3) {
        return "shape of a product";
    }
    Tensor* plain = host.ggml_mul_mat(context, rows, rows);
    if (weights->op != 0 || product->op == plain->op || product->op == 0) {
        return "tensor layout: operation";
    }
    Tensor* bias = host.ggml_new_tensor_4d(context, TYPE_F32, 4, 2, 1, 1);
    const bool found =
        number_of(host.ggml_swiglu_split(context, rows, rows), "SWIGLU", ops.glu) &&
        number_of(host.ggml_add_id(context, product, bias, ids), "ADD_ID", ops.add_id) &&
        number_of(product, "MUL_MAT_ID", ops.mul_mat_id) && number_of(weights, "NONE", ops.none) &&
        number_of(host.ggml_reshape_1d(context, rows, 48), "RESHAPE", ops.reshape) &&
        number_of(host.ggml_view_1d(context, rows, 8, 0), "VIEW", ops.view) &&
        number_of(host.ggml_permute(context, rows, 0, 2, 1, 3), "PERMUTE", ops.permute) &&
        number_of(host.ggml_transpose(context, rows), "TRANSPOSE", ops.transpose);
    return found ? nullptr : "operation numbers";
}

const char* check_buffer_type() {
    Roomy<BufferType> roomy{};
    BufferType& type = roomy.object;
    fill(type.table);
    type.device = marker<Device>(1);
    answer = 0;
    called = 0;
    host.ggml_backend_buft_name(&type);
    bool fits = only(offsetof(BufferTypeTable, get_name));
    host.ggml_backend_buft_alloc_buffer(&type, 64);
    fits &= only(offsetof(BufferTypeTable, alloc_buffer));
    host.ggml_backend_buft_get_alignment(&type);
    fits &= only(offsetof(BufferTypeTable, get_alignment));
    host.ggml_backend_buft_get_max_size(&type);
    fits &= only(offsetof(BufferTypeTable, get_max_size));
    host.ggml_backend_buft_is_host(&type);
    fits &= only(offsetof(BufferTypeTable, is_host));
    fits &= host.ggml_backend_buft_get_device(&type) == marker<Device>(1);
    return fits ? nullptr : "buffer type";
}

const char* check_buffer() {
    Roomy<BufferTable> roomy{};
    fill(roomy.object);
    // The table is passed by value, in memory: a host with a longer one reads on into the room.
    using Init = Buffer* (*)(BufferType*, Roomy<BufferTable>, void*, size_t);
    auto init = std::bit_cast<Init>(host.ggml_backend_buffer_init);
    Buffer* buffer = init(marker<BufferType>(2), roomy, marker<void>(3), 4096);
    called = 0;
    answer = reinterpret_cast<uintptr_t>(marker<void>(1));
    bool fits = host.ggml_backend_buffer_get_base(buffer) == marker<void>(1);
    fits &= only(offsetof(BufferTable, get_base));
    host.ggml_backend_buffer_clear(buffer, 0);
    fits &= only(offsetof(BufferTable, clear));
    host.ggml_backend_buffer_reset(buffer);
    fits &= only(offsetof(BufferTable, reset));
    fits &= host.ggml_backend_buffer_get_type(buffer) == marker<BufferType>(2);
    fits &= host.ggml_backend_buffer_get_size(buffer) == 4096;
    fits = fits && buffer->type == marker<BufferType>(2) && buffer->context == marker<void>(3) &&
           buffer->size == 4096;
    host.ggml_backend_buffer_free(buffer);
    fits &= only(offsetof(BufferTable, free_buffer));
    return fits ? nullptr : "buffer";
}

const char* check_device() {
    Roomy<Device> roomy{};
    Device& device = roomy.object;
    fill(device.table);
    device.registration = marker<Registration>(1);
    answer = 0;
    called = 0;
    host.ggml_backend_dev_name(&device);
    bool fits = only(offsetof(DeviceTable, get_name));
    host.ggml_backend_dev_type(&device);
    fits &= only(offsetof(DeviceTable, get_type));
    host.ggml_backend_dev_init(&device, nullptr);
    fits &= only(offsetof(DeviceTable, init_backend));
    host.ggml_backend_dev_buffer_type(&device);
    fits &= only(offsetof(DeviceTable, get_buffer_type));
    host.ggml_backend_dev_buffer_from_host_ptr(&device, marker<void>(2), 64, 64);
    fits &= only(offsetof(DeviceTable, buffer_from_host_ptr));
    host.ggml_backend_dev_supports_op(&device, nullptr);
    fits &= only(offsetof(DeviceTable, supports_op));
    host.ggml_backend_dev_supports_buft(&device, marker<BufferType>(2));
    fits &= only(offsetof(DeviceTable, supports_buft));
    host.ggml_backend_dev_offload_op(&device, nullptr);
    fits &= only(offsetof(DeviceTable, offload_op));
    fits &= host.ggml_backend_dev_backend_reg(&device) == marker<Registration>(1);
    return fits ? nullptr : "device";
}

const char* check_backend() {
    Roomy<Backend> roomy{};
    Backend& backend = roomy.object;
    fill(backend.table);
    backend.device = marker<Device>(1);
    answer = 0;
    called = 0;
    host.ggml_backend_name(&backend);
    bool fits = only(offsetof(BackendTable, get_name));
    host.ggml_backend_synchronize(&backend);
    fits &= only(offsetof(BackendTable, synchronize));
    host.ggml_backend_graph_compute(&backend, nullptr);
    called &= ~place_of(offsetof(BackendTable, synchronize)); // how that call ends
    fits &= only(offsetof(BackendTable, graph_compute));
    host.ggml_backend_free(&backend);
    fits &= only(offsetof(BackendTable, free));
    fits &= host.ggml_backend_get_device(&backend) == marker<Device>(1);
    return fits ? nullptr : "backend";
}

const char* check_registration() {
    Roomy<Registration> roomy{};
    Registration& registration = roomy.object;
    fill(registration.table);
    answer = 0;
    called = 0;
    host.ggml_backend_reg_name(&registration);
    bool fits = only(offsetof(RegistrationTable, get_name));
    host.ggml_backend_reg_dev_count(&registration);
    fits &= only(offsetof(RegistrationTable, get_device_count));
    host.ggml_backend_reg_get_proc_address(&registration, "");
    fits &= only(offsetof(RegistrationTable, get_proc_address));
    return fits ? nullptr : "registration";
}

} // namespace

const char* handshake() {
    // The size of a tensor comes first: with it wrong, no field may be looked at.
    constexpr size_t BOOKKEEPING_BYTES = 32; // what ggml's context adds to each object
    if (host.ggml_tensor_overhead() != sizeof(Tensor) + BOOKKEEPING_BYTES) {
        return "tensor size";
    }
    Context* context = host.ggml_init(
        {.mem_size = 32 * host.ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true});
    if (context == nullptr) {
        return "context";
    }
    const char* misfit = check_tensor(context);
    if (misfit == nullptr) {
        misfit = check_ops(context);
    }
    host.ggml_free(context);
    for (auto check :
         {check_buffer_type, check_buffer, check_device, check_backend, check_registration}) {
        if (misfit == nullptr) {
            misfit = check();
        }
    }
    return misfit;
}

} // namespace hotset
