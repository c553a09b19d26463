// A library with NVML's name and binary interface: two GPUs of a multi-node NVLink domain, each with 18 links to
// switches. What a driver may lack is missing here: versions of NVLinks.
#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3 };
enum { NVLINK_SPEED_COMMON = 90, NUM_GPUS = 2, NUM_LINKS = 18, TYPE_SWITCH = 2 };

struct pci_info {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

struct field_value {
  unsigned field_id, scope_id;
  long long timestamp, latency_us;
  int value_type, result;
  union {
    double d;
    unsigned u;
    unsigned long long ull;
  } value;
};

struct fabric_info {
  unsigned version;
  unsigned char cluster_uuid[16];
  int status;
  unsigned clique_id;
  unsigned char state;
  unsigned health_mask;
};

static char gpus[NUM_GPUS];

int nvmlInitWithFlags(unsigned flags) { return flags == 0 ? SUCCESS : INVALID_ARGUMENT; }
int nvmlShutdown(void) { return SUCCESS; }
const char* nvmlErrorString(int result) { return result == NOT_SUPPORTED ? "Not Supported" : "Error"; }

int nvmlSystemGetDriverVersion(char* version, unsigned length) {
  snprintf(version, length, "999.0");
  return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = NUM_GPUS;
  return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &gpus[index];
  return SUCCESS;
}

static int index_of(const void* device) { return (int)((const char*)device - gpus); }

int nvmlDeviceGetName(void* device, char* name, unsigned length) {
  snprintf(name, length, "Made-up GPU %d", index_of(device));
  return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void* device, struct pci_info* info) {
  snprintf(info->bus_id, sizeof info->bus_id, "00000008:%02X:00.0", 0xA0 + index_of(device));
  return SUCCESS;
}

int nvmlDeviceGetNvLinkState(void* device, unsigned link, unsigned* is_active) {
  (void)device;
  *is_active = 1;
  return link < NUM_LINKS ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned link, struct pci_info* info) {
  (void)device, (void)link;
  snprintf(info->bus_id, sizeof info->bus_id, "FFFFFFFF:FF:FF.0");
  return SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void* device, unsigned link, unsigned* type) {
  (void)device, (void)link;
  *type = TYPE_SWITCH;
  return SUCCESS;
}

int nvmlDeviceGetFieldValues(void* device, int count, struct field_value* values) {
  (void)device;
  for (int i = 0; i < count; ++i) {
    values[i].result = values[i].field_id == NVLINK_SPEED_COMMON ? SUCCESS : NOT_SUPPORTED;
    values[i].value.u = 53125;
  }
  return SUCCESS;
}

int nvmlDeviceGetGpuFabricInfoV(void* device, struct fabric_info* info) {
  if (info->version != (sizeof *info | 2u << 24)) {
    return INVALID_ARGUMENT;
  }
  memset(info->cluster_uuid, 0xAB, sizeof info->cluster_uuid);
  info->status = SUCCESS;
  info->clique_id = 32766;
  info->state = 3;  // completed
  (void)device;
  return SUCCESS;
}
