/* Kernels on the simulators: the run-time compiler compiles the shared source for the host (`backends/kernels/cu/prelude_host.h` instead of the
 * vendor's prelude), and a launch runs it there, a fiber for each thread, in an order drawn from a seed. Where launches are only written down an
 * image is the source itself. Addresses of the device in a kernel's parameters are translated, as the host reaches that memory elsewhere. */
#include "sim.h"
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SIM_KERNELS
#error "SIM_KERNELS is the folder of the kernels' sources"
#endif
#define NOTE "SIMNOTE"
#define CODE "SIMCODE"

extern int sim_notes;
int sim_modules, sim_compiles;

/* What a module's functions take: the prelude's `cwhost::Ctx`. */
typedef struct context { unsigned grid[3], block[3], shared, warp; uint64_t seed; const char *error; } context;
typedef int entry(const void *args, context *c);
struct module { void *code; char *note; };
struct function { char *name; entry *run; unsigned bytes, room; };
/* `alive`: which of the first 64 words of the arguments were addresses of the device. */
typedef struct launch { context c; entry *run; char *name; uint64_t alive; uint64_t args[]; } launch;

static char *file(const char *name) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", SIM_KERNELS, name);
  FILE *f = fopen(path, "rb");
  if (!f) { fprintf(stderr, "SIMULATOR: %s is not there\n", path); abort(); }
  fseek(f, 0, SEEK_END);
  size_t n = (size_t)ftell(f);
  rewind(f);
  char *text = calloc(1, n + 1);
  if (fread(text, 1, n, f) != n) abort();
  fclose(f);
  return text;
}
/* The source with `from` (a file's text) as `to`'s. */
static char *instead(char *source, const char *from, const char *to) {
  char *was = file(from), *is = file(to), *at = strstr(source, was), *out = source;
  if (at) {
    size_t before = (size_t)(at - source);
    out = malloc(strlen(source) + strlen(is) + 1);
    memcpy(out, source, before);
    strcpy(out + before, is);
    strcat(out + before, at + strlen(was));
    free(source);
  }
  free(was); free(is);
  return out;
}
static void put(const char *path, const char *text) {
  FILE *f = fopen(path, "wb");
  if (!f || fputs(text, f) < 0 || fclose(f)) { fprintf(stderr, "SIMULATOR: %s cannot be written\n", path); abort(); }
}
static char *get(const char *path, size_t *n) {
  FILE *f = fopen(path, "rb");
  if (!f) return NULL;
  fseek(f, 0, SEEK_END);
  *n = (size_t)ftell(f);
  rewind(f);
  char *b = calloc(1, *n + 1);
  if (fread(b, 1, *n, f) != *n) *n = 0;
  fclose(f);
  return b;
}

st sim_compile(const char *source, image *out) {
  __atomic_fetch_add(&sim_compiles, 1, __ATOMIC_SEQ_CST);
  *out = (image){0};
  if (strstr(source, "#error") && !strstr(source, "CW_WARP")) { out->log = strdup("line 1: #error"); return 6; }
  if (sim_notes) {
    out->n = strlen(source) + 9;
    out->bytes = malloc(out->n);
    memcpy(out->bytes, NOTE, 8); memcpy(out->bytes + 8, source, out->n - 8);
    return OK;
  }
  char *text = instead(strdup(source), "prelude_cuda.h", "prelude_host.h");
  text = instead(text, "prelude_hip.h", "prelude_host.h");
  text = instead(text, "wgmma_cuda.h", "wgmma_host.h");
  char dir[] = "/tmp/cw-sim-XXXXXX", from[64], to[64], words[64], command[512];
  if (!mkdtemp(dir)) { fprintf(stderr, "SIMULATOR: no folder for the compiler\n"); abort(); }
  snprintf(from, sizeof from, "%s/k.cpp", dir);
  snprintf(to, sizeof to, "%s/k.so", dir);
  snprintf(words, sizeof words, "%s/log", dir);
  put(from, text);
  free(text);
  /* Of C++17 the kernels have `if constexpr` alone, which compilers take earlier too; its <cmath> is a third of a compilation. */
  const char *cxx = getenv("CXX");
  snprintf(command, sizeof command, "%s -std=c++14 -O1 -ffp-contract=off -fno-strict-aliasing -fPIC -shared -w -o %s %s >%s 2>&1", cxx && *cxx ? cxx : "c++", to, from, words);
  int rc = system(command);
  size_t n = 0, logged;
  char *code = rc ? NULL : get(to, &n);
  if (code) {
    out->n = 16 + n;
    out->bytes = malloc(out->n);
    memcpy(out->bytes, CODE, 8); memcpy(out->bytes + 8, &(uint64_t){n}, 8); memcpy(out->bytes + 16, code, n);
    free(code);
  } else out->log = get(words, &logged);
  unlink(from); unlink(to); unlink(words); rmdir(dir);
  return code ? OK : 6;
}

st core_module(module **m, const void *bytes) {
  if (!sim_here()) return NO_CONTEXT;
  if (sim_here()->dead) return sim_here()->dead;
  module *x = calloc(1, sizeof *x);
  if (!memcmp(bytes, NOTE, 8)) x->note = strdup((const char *)bytes + 8);
  else if (!memcmp(bytes, CODE, 8)) {
    uint64_t n;
    memcpy(&n, (const char *)bytes + 8, 8);
    /* Under a name that no other module had: the loader knows libraries by their names. */
    char path[] = "/tmp/cw-sim-kernel-XXXXXX";
    int fd = mkstemp(path);
    if (fd >= 0 && write(fd, (const char *)bytes + 16, n) == (ssize_t)n) x->code = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!x->code) fprintf(stderr, "SIMULATOR: a kernel does not load: %s\n", dlerror());
    if (fd >= 0) { close(fd); unlink(path); }
  }
  if (!x->note && !x->code) { free(x); return BAD_IMAGE; }
  __atomic_fetch_add(&sim_modules, 1, __ATOMIC_SEQ_CST);
  *m = x;
  return OK;
}
/* Code stays loaded: threads of streams have variables of it. */
st core_module_unload(module *m) { if (!sim_here()) return NO_CONTEXT; free(m->note); free(m); __atomic_fetch_sub(&sim_modules, 1, __ATOMIC_SEQ_CST); return OK; }
st core_function(function **f, module *m, const char *name) {
  if (!sim_here()) return NO_CONTEXT;
  if (m->note ? !strstr(m->note, name) : !dlsym(m->code, name)) return NOT_FOUND;
  function *x = calloc(1, sizeof *x);
  x->name = strdup(name);
  x->room = 49152;
  if (m->code) {
    char size[256];
    snprintf(size, sizeof size, "%s_bytes", name);
    const unsigned *n = dlsym(m->code, size);
    *(void **)&x->run = dlsym(m->code, name);
    x->bytes = n ? *n : 0;
  }
  *f = x;
  return OK;
}

void core_function_room(function *f, unsigned bytes) { f->room = bytes; }

static st compute(void *data, device *d) {
  launch *l = data;
  if (!l->run) return strcmp(l->name, "sim_goes_astray") ? OK : 700;
  uint64_t *args = l->args;
  for (int i = 0; i < 64; i++)
    if (l->alive >> i & 1 && !core_alive((void *)args[i])) {
      fprintf(stderr, "SIMULATED device %d: kernel %s: memory was freed before its stream came to it\n", d->index, l->name);
      return 700;
    }
  if (l->run(args, &l->c)) {
    fprintf(stderr, "SIMULATED device %d: kernel %s: %s\n", d->index, l->name, l->c.error ? l->c.error : "failed");
    return LAUNCH_FAILED;
  }
  return OK;
}
st core_launch_kernel(function *f, const unsigned g[3], const unsigned b[3], unsigned shared, stream *s, void **params) {
  if (!g[0] || !g[1] || !g[2] || !b[0] || !b[1] || !b[2] || b[0] * b[1] * b[2] > 1024 || b[2] > 64 || g[0] > 0x7fffffff || shared > f->room || g[1] > 65535 || g[2] > 65535 || !params) return INVALID;
  char line[512];
  snprintf(line, sizeof line, "%s %u,%u,%u %u,%u,%u %u\n", f->name, g[0], g[1], g[2], b[0], b[1], b[2], shared);
  size_t n = sizeof(launch) + (f->bytes + 7) / 8 * 8;
  launch *l = calloc(1, n);
  static uint64_t seeds;
  l->c = (context){{g[0], g[1], g[2]}, {b[0], b[1], b[2]}, shared, sim_warp, __atomic_add_fetch(&seeds, 1, __ATOMIC_RELAXED), NULL};
  l->run = f->run; l->name = f->name;
  memcpy(l->args, params[0], f->bytes);
  for (size_t i = 0; i < f->bytes / 8; i++) {
    addr given = l->args[i];
    l->args[i] = (uint64_t)sim_real(given);
    if (i < 64 && l->args[i] != given && core_kind(given, 1) == 'd') l->alive |= 1ull << i;
  }
  st r = core_launch(s, compute, l, n, line);
  if (r) free(l);
  return r;
}
API int sim_compiled(void) { return sim_compiles; }
