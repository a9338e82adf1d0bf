/* A manifest that states no name. */
#include "stub.h"
CW_MANIFEST("vendor=Attack");
ENTRY { (void)host; (void)err; return answer(out, device_only); }
