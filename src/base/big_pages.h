// Memory on huge pages for what is written once and then streamed over and over, like weights:
// pieces cut one after the other from regions that are aligned to 2 MiB and for which huge pages
// are asked (madvise), so that small pieces get them as well. A page walk for every 4 KiB costs a
// stream a quarter of its speed or more, most of all in virtual machines; where the system gives no
// huge pages everything works all the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvasir {

// `bytes` zeros, 64-byte aligned: from the region of the piece before, or from a new one if they do
// not fit there. Null if the system refuses, or for 0 bytes. A region goes back to the system when
// the last of its pieces goes. Any thread.
std::shared_ptr<uint8_t> TakeBigPages(size_t bytes);

}  // namespace kvasir
