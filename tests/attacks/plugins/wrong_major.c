/* Built for another ABI. Its constructor ends the process, so merely opening it fails the test. */
#include "stub.h"
#include <stdlib.h>
CW_SECTION static const char manifest[] = "crossweave-plugin;abi=9.3;name=stub;vendor=Attack";
__attribute__((constructor)) static void loud(void) { abort(); }
ENTRY { (void)host; (void)err; (void)manifest; return answer(out, device_only); }
