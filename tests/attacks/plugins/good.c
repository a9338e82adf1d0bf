/* No attack: loads. */
#include "stub.h"
CW_MANIFEST("name=stub;vendor=Attack;interfaces=crossweave.device/1");
ENTRY { (void)host; (void)err; return answer(out, device_only); }
