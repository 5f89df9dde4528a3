/*
 * A stand-in for NVIDIA's libnvidia-ml.so.1 that answers from a text file.
 *
 * The real pynvml loads it (LD_LIBRARY_PATH) and calls it as it calls the driver. The file, named by
 * FAKE_NVML_STATE, is looked at in every call and read again when its time, size or inode changed, so a test can
 * edit it (by rename) while programs run. Without a readable file the driver counts as not loaded.
 *
 * The format, one "key value ..." a line; blank lines and lines that begin with # are skipped:
 *
 *     driver 550.54.15            text; also: nvml TEXT
 *     count 3                     devices that are counted; default: the highest gpu line + 1
 *     RULE ...                    applies to every call, see below
 *     gpu 0                       begins GPU 0; the keys that follow belong to it. A number left out below `count` is
 *                                 a hole: its handle is NOT_FOUND. A GPU that vanishes later: GPU_IS_LOST
 *     uuid GPU-...
 *     name NVIDIA H100 80GB HBM3
 *     pci 00000000:1B:00.0        domain:bus:device.function, hexadecimal
 *     memory_total_mib 81559      numbers; "-" is NOT_SUPPORTED
 *     memory_reserved_mib 500     counted as used by nvmlDeviceGetMemoryInfo, apart by _v2, as the driver does
 *     memory_used_mib 0
 *     utilisation_pct 0
 *     memory_utilisation_pct 0
 *     temperature_c 35
 *     power_mw 70000
 *     process compute 4711 500    kind (compute or graphics), pid, MiB or "-" (not available), then optionally the GPU
 *                                 and compute instance; any number of such lines
 *     RULE ...                    applies to the calls about this GPU, and goes before a rule for every call
 *
 * Rules; PATTERN is a shell pattern (fnmatch) that the exported name matches with or without its version suffix, so
 * nvmlDeviceGetMemoryInfo means _v2 as well and nvmlDevice* means every call about a device:
 *
 *     error PATTERN CODE          the call returns this nvmlReturn_t
 *     delay PATTERN MILLISECONDS  the call takes that long first; -1: it never returns
 *     crash PATTERN               the call ends the process by SIGSEGV
 *
 * To extend it: a key is one row of `set_number` or a branch of `set_gpu`, a function is one entry at the end. An
 * unknown key ends the calling process with status 70 and a message, so that a typo cannot pass for a healthy GPU.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fnmatch.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25
};
enum { MAX_GPUS = 64, MAX_PROCESSES = 256, MAX_RULES = 64 };
enum { NOT_AVAILABLE = -1 }; /* what "-" is kept as */
enum { ANY = -1, NONE = -2 }; /* which GPU a rule or a call is about */
enum kind { ERROR, DELAY, CRASH };

typedef void *handle_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_info_t;
typedef struct { unsigned version, sensor; int temperature; } temperature_t;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} pci_info_t;

struct process { int graphics; long long used_mib; unsigned pid, gpu_instance, compute_instance; };
struct rule { char pattern[96]; enum kind kind; int value, gpu; };
struct gpu {
    int present, processes;
    char uuid[96], name[96], pci[32];
    long long memory_total_mib, memory_reserved_mib, memory_used_mib;
    long long utilisation_pct, memory_utilisation_pct, temperature_c, power_mw;
    struct process process[MAX_PROCESSES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int references; /* nvmlInit calls that nvmlShutdown has not taken back */
static struct stat seen;
static int readable;
static struct gpu gpus[MAX_GPUS];
static struct rule rules[MAX_RULES];
static int rule_count, device_count;
static char driver_version[80], nvml_version[80];

/* ---- the state file ---- */

static void bad_line(int number, const char *line) {
    fprintf(stderr, "fake nvml: line %d of %s is not understood: %s\n", number, getenv("FAKE_NVML_STATE"), line);
    _exit(70);
}

static int set_number(struct gpu *gpu, const char *key, const char *value) {
    const struct { const char *key; long long *place; } numbers[] = {
        {"memory_total_mib", &gpu->memory_total_mib}, {"memory_reserved_mib", &gpu->memory_reserved_mib},
        {"memory_used_mib", &gpu->memory_used_mib},   {"utilisation_pct", &gpu->utilisation_pct},
        {"temperature_c", &gpu->temperature_c},       {"memory_utilisation_pct", &gpu->memory_utilisation_pct},
        {"power_mw", &gpu->power_mw},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(key, numbers[i].key)) {
            *numbers[i].place = strcmp(value, "-") ? atoll(value) : NOT_AVAILABLE;
            return 1;
        }
    return 0;
}

static int set_gpu(struct gpu *gpu, const char *key, const char *value) {
    if (!strcmp(key, "uuid")) return snprintf(gpu->uuid, sizeof gpu->uuid, "%s", value) > 0;
    if (!strcmp(key, "name")) return snprintf(gpu->name, sizeof gpu->name, "%s", value) > 0;
    if (!strcmp(key, "pci")) return snprintf(gpu->pci, sizeof gpu->pci, "%s", value) > 0;
    if (!strcmp(key, "process")) {
        char kind[16], used[32];
        struct process p = {.gpu_instance = UINT32_MAX, .compute_instance = UINT32_MAX};
        int fields = sscanf(value, "%15s %u %31s %u %u", kind, &p.pid, used, &p.gpu_instance, &p.compute_instance);
        if (fields < 3 || gpu->processes == MAX_PROCESSES) return 0;
        if (strcmp(kind, "compute") && strcmp(kind, "graphics")) return 0;
        p.graphics = !strcmp(kind, "graphics");
        p.used_mib = strcmp(used, "-") ? atoll(used) : NOT_AVAILABLE;
        gpu->process[gpu->processes++] = p;
        return 1;
    }
    return set_number(gpu, key, value);
}

static int add_rule(const char *key, const char *value, int gpu) {
    struct rule rule = {.gpu = gpu};
    if (!strcmp(key, "error")) rule.kind = ERROR;
    else if (!strcmp(key, "delay")) rule.kind = DELAY;
    else if (!strcmp(key, "crash")) rule.kind = CRASH;
    else return 0;
    int fields = sscanf(value, "%95s %d", rule.pattern, &rule.value);
    if (fields != (rule.kind == CRASH ? 1 : 2) || rule_count == MAX_RULES) return 0;
    rules[rule_count++] = rule;
    return 1;
}

static void parse(FILE *file) {
    char line[512], key[64];
    int number = 0, current = NONE, highest = -1, count = -1;
    memset(gpus, 0, sizeof gpus);
    rule_count = 0;
    strcpy(driver_version, "550.54.15");
    strcpy(nvml_version, "12.550.54.15");
    while (fgets(line, sizeof line, file)) {
        number++;
        line[strcspn(line, "\n")] = 0;
        int used = 0;
        if (sscanf(line, " %63s %n", key, &used) < 1 || key[0] == '#') continue;
        const char *value = line + used;
        if (add_rule(key, value, current == NONE ? ANY : current)) continue;
        if (!strcmp(key, "gpu")) {
            char *end;
            long index = strtol(value, &end, 10);
            if (end == value || index < 0 || index >= MAX_GPUS) bad_line(number, line);
            current = (int)index;
            if (current > highest) highest = current;
            gpus[current].present = 1;
        } else if (current != NONE) {
            if (!set_gpu(&gpus[current], key, value)) bad_line(number, line);
        } else if (!strcmp(key, "driver")) snprintf(driver_version, sizeof driver_version, "%s", value);
        else if (!strcmp(key, "nvml")) snprintf(nvml_version, sizeof nvml_version, "%s", value);
        else if (!strcmp(key, "count")) count = atoi(value);
        else bad_line(number, line);
    }
    device_count = count >= 0 ? count : highest + 1;
}

static void refresh(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    struct stat now;
    if (!path || stat(path, &now)) { readable = 0; return; }
    if (readable && now.st_ino == seen.st_ino && now.st_size == seen.st_size &&
        now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "re");
    if (!file) { readable = 0; return; }
    fstat(fileno(file), &seen); /* of what is read, in case of a rename since stat */
    parse(file);
    fclose(file);
    readable = 1;
}

/* ---- what every call does first ---- */

static int matches(const char *pattern, const char *function) {
    char plain[96];
    snprintf(plain, sizeof plain, "%s", function);
    char *suffix = strrchr(plain, '_');
    if (suffix && suffix[1] == 'v') *suffix = 0;
    return !fnmatch(pattern, function, 0) || !fnmatch(pattern, plain, 0);
}

static struct rule *find_rule(enum kind kind, const char *function, int gpu) {
    for (int pass = 0; pass < 2; pass++) {
        int wanted = pass == 0 ? gpu : ANY;
        for (int i = 0; i < rule_count; i++)
            if (rules[i].kind == kind && rules[i].gpu == wanted && matches(rules[i].pattern, function))
                return &rules[i];
    }
    return NULL;
}

static void wait_for(int milliseconds) {
    if (milliseconds < 0)
        for (;;) pause();
    struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    while (nanosleep(&left, &left) && errno == EINTR) {}
}

/* Takes the lock and applies the rules. The lock is still held if and only if it returns SUCCESS. */
static int begin(const char *function, int gpu) {
    pthread_mutex_lock(&lock);
    refresh();
    struct rule *rule = find_rule(DELAY, function, gpu);
    if (rule) {
        int milliseconds = rule->value;
        pthread_mutex_unlock(&lock);
        wait_for(milliseconds);
        pthread_mutex_lock(&lock);
        refresh();
    }
    if (find_rule(CRASH, function, gpu)) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    int code = SUCCESS;
    int initialising = !strncmp(function, "nvmlInit", 8);
    if (!initialising && !references) code = UNINITIALIZED;
    else if ((rule = find_rule(ERROR, function, gpu))) code = rule->value;
    else if (!readable) code = initialising ? DRIVER_NOT_LOADED : GPU_IS_LOST;
    if (code != SUCCESS) pthread_mutex_unlock(&lock);
    return code;
}

static int end(int code) {
    pthread_mutex_unlock(&lock);
    return code;
}

/* A handle is the GPU's number plus one; the bits above 16 are free for instances of it. */
static handle_t handle_of(int gpu) { return (handle_t)(uintptr_t)(gpu + 1); }

static int begin_device(const char *function, handle_t device, struct gpu **gpu) {
    uintptr_t number = (uintptr_t)device;
    if (!number || number > MAX_GPUS) return INVALID_ARGUMENT;
    int code = begin(function, (int)number - 1);
    if (code != SUCCESS) return code;
    *gpu = &gpus[number - 1];
    return (*gpu)->present ? SUCCESS : end(GPU_IS_LOST);
}

static int give_text(const char *text, char *buffer, unsigned length) {
    if (!buffer) return INVALID_ARGUMENT;
    if (strlen(text) >= length) return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return SUCCESS;
}

static int give_number(long long value, unsigned *place) {
    if (!place) return INVALID_ARGUMENT;
    if (value == NOT_AVAILABLE) return NOT_SUPPORTED;
    *place = (unsigned)value;
    return SUCCESS;
}

/* ---- the exported functions ---- */

#define BEGIN(gpu_number) \
    do { int code_ = begin(__func__, gpu_number); if (code_ != SUCCESS) return code_; } while (0)
#define BEGIN_DEVICE(device) \
    struct gpu *gpu; \
    do { int code_ = begin_device(__func__, device, &gpu); if (code_ != SUCCESS) return code_; } while (0)

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    BEGIN(NONE);
    references++;
    return end(SUCCESS);
}

int nvmlInit_v2(void) {
    BEGIN(NONE);
    references++;
    return end(SUCCESS);
}

int nvmlShutdown(void) {
    BEGIN(NONE);
    references--;
    return end(SUCCESS);
}

const char *nvmlErrorString(int code) {
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires reset",
        "The operating system has blocked the request.", "Driver/library version mismatch", "In use by another client",
        "Insufficient Memory", "No data",
    };
    return code >= 0 && code < (int)(sizeof texts / sizeof *texts) ? texts[code] : "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    BEGIN(NONE);
    return end(give_text(driver_version, version, length));
}

int nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    BEGIN(NONE);
    return end(give_text(nvml_version, version, length));
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    BEGIN(NONE);
    return end(give_number(device_count, count));
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle_t *device) {
    if (!device || index >= MAX_GPUS) return INVALID_ARGUMENT;
    BEGIN((int)index);
    if ((int)index >= device_count) return end(INVALID_ARGUMENT);
    if (!gpus[index].present) return end(NOT_FOUND);
    *device = handle_of((int)index);
    return end(SUCCESS);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, handle_t *device) {
    if (!uuid || !device) return INVALID_ARGUMENT;
    /* Which GPU it is about must be known before its rules can be applied. */
    pthread_mutex_lock(&lock);
    refresh();
    int found = NONE;
    for (int i = 0; i < MAX_GPUS; i++)
        if (gpus[i].present && !strcmp(gpus[i].uuid, uuid)) found = i;
    pthread_mutex_unlock(&lock);
    BEGIN(found);
    if (found == NONE || !gpus[found].present) return end(NOT_FOUND);
    *device = handle_of(found);
    return end(SUCCESS);
}

int nvmlDeviceGetUUID(handle_t device, char *uuid, unsigned length) {
    BEGIN_DEVICE(device);
    return end(give_text(gpu->uuid, uuid, length));
}

int nvmlDeviceGetName(handle_t device, char *name, unsigned length) {
    BEGIN_DEVICE(device);
    return end(give_text(gpu->name, name, length));
}

int nvmlDeviceGetIndex(handle_t device, unsigned *index) {
    BEGIN_DEVICE(device);
    return end(give_number(gpu - gpus, index));
}

int nvmlDeviceGetPciInfo_v3(handle_t device, pci_info_t *info) {
    BEGIN_DEVICE(device);
    memset(info, 0, sizeof *info);
    sscanf(gpu->pci, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    snprintf(info->bus_id, sizeof info->bus_id, "%s", gpu->pci);
    snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "%04X:%02X:%02X.0", info->domain & 0xffff,
             info->bus & 0xff, info->device & 0xff);
    return end(SUCCESS);
}

static unsigned long long bytes(long long mib) { return (unsigned long long)mib << 20; }

int nvmlDeviceGetMemoryInfo(handle_t device, memory_t *memory) {
    BEGIN_DEVICE(device);
    if (gpu->memory_total_mib == NOT_AVAILABLE || gpu->memory_used_mib == NOT_AVAILABLE) return end(NOT_SUPPORTED);
    memory->total = bytes(gpu->memory_total_mib);
    memory->used = bytes(gpu->memory_used_mib + gpu->memory_reserved_mib);
    memory->free = memory->total - memory->used;
    return end(SUCCESS);
}

int nvmlDeviceGetMemoryInfo_v2(handle_t device, memory_v2_t *memory) {
    BEGIN_DEVICE(device);
    if (memory->version != (sizeof *memory | 2u << 24)) return end(ARGUMENT_VERSION_MISMATCH);
    if (gpu->memory_total_mib == NOT_AVAILABLE || gpu->memory_used_mib == NOT_AVAILABLE) return end(NOT_SUPPORTED);
    memory->total = bytes(gpu->memory_total_mib);
    memory->reserved = bytes(gpu->memory_reserved_mib);
    memory->used = bytes(gpu->memory_used_mib);
    memory->free = memory->total - memory->reserved - memory->used;
    return end(SUCCESS);
}

int nvmlDeviceGetUtilizationRates(handle_t device, utilization_t *utilization) {
    BEGIN_DEVICE(device);
    int code = give_number(gpu->utilisation_pct, &utilization->gpu);
    if (code != SUCCESS) return end(code);
    return end(give_number(gpu->memory_utilisation_pct, &utilization->memory));
}

int nvmlDeviceGetTemperature(handle_t device, unsigned sensor, unsigned *temperature) {
    BEGIN_DEVICE(device);
    return end(sensor ? INVALID_ARGUMENT : give_number(gpu->temperature_c, temperature));
}

int nvmlDeviceGetTemperatureV(handle_t device, temperature_t *temperature) {
    BEGIN_DEVICE(device);
    if (temperature->version != (sizeof *temperature | 1u << 24)) return end(ARGUMENT_VERSION_MISMATCH);
    return end(give_number(gpu->temperature_c, (unsigned *)&temperature->temperature));
}

int nvmlDeviceGetPowerUsage(handle_t device, unsigned *milliwatts) {
    BEGIN_DEVICE(device);
    return end(give_number(gpu->power_mw, milliwatts));
}

static int give_processes(const struct gpu *gpu, int graphics, unsigned *count, process_info_t *infos) {
    unsigned room = *count, found = 0;
    for (int i = 0; i < gpu->processes; i++) {
        const struct process *p = &gpu->process[i];
        if (p->graphics != graphics) continue;
        if (infos && found < room)
            infos[found] = (process_info_t){
                .pid = p->pid,
                .used = p->used_mib == NOT_AVAILABLE ? UINT64_MAX : bytes(p->used_mib),
                .gpu_instance = p->gpu_instance,
                .compute_instance = p->compute_instance,
            };
        found++;
    }
    *count = found;
    return found > room || (found && !infos) ? INSUFFICIENT_SIZE : SUCCESS;
}

#define PROCESSES(name, graphics) \
    int name(handle_t device, unsigned *count, process_info_t *infos) { \
        BEGIN_DEVICE(device); \
        return end(count ? give_processes(gpu, graphics, count, infos) : INVALID_ARGUMENT); \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, 0)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, 0)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, 1)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, 1)
