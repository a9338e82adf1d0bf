/* The device is whole, the collective table is empty. */
#include "stub.h"
CW_MANIFEST("name=stub;vendor=Attack");
static const cw_collective_api coll = {.size = sizeof(cw_collective_api)};
static const void *get(void *self, cw_str id) { return is(id, "crossweave.collective/1") ? &coll : device_only(self, id); }
ENTRY { (void)host; (void)err; return answer(out, get); }
