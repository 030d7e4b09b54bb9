// Proof, at load time, that the host lays its structures out as ggml_abi.h says.
#pragma once

namespace hotset {

// Numbers that the host chose and that change between its versions.
struct Ops {
    int none, reshape, view, permute, transpose, mul_mat_id, glu, add_id;
};

extern Ops ops;

// Compares structures through public calls only, with tables whose every entry merely notes that
// it was called: a host that differs is found out, not crashed. Fills `ops`.
// Returns null when all fits, else what does not, for a message.
const char* handshake();

} // namespace hotset
