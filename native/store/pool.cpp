#include "pool.h"

namespace hotset {

void Pool::update_idle(uint32_t unit) {
    const Unit& u = units[unit];
    const bool idle = u.slot != NOWHERE && u.num_leases == 0 && u.num_coming == 0;
    if (idle != may_leave[unit]) {
        may_leave[unit] = idle;
        num_idle += idle ? 1 : -1;
    }
}

} // namespace hotset
