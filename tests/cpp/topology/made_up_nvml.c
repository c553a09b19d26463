// A library with NVML's name and binary interface.
#include "made_up_nvml.h"

#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, LINK_SPEED = 90, C2C_COUNT = 170, C2C_SPEED = 172 };

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

struct made_up_nvml made_up_nvml;

int nvmlInit_v2(void) { return made_up_nvml.init_result; }
int nvmlShutdown(void) {
  ++made_up_nvml.num_shutdowns;
  return SUCCESS;
}
const char* nvmlErrorString(int result) {
  return result == 9 ? "Driver Not Loaded" : result == 15 ? "GPU is lost" : "Error";
}

int nvmlSystemGetDriverVersion(char* version, unsigned length) {
  snprintf(version, length, "999.0");
  return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = made_up_nvml.num_gpus;
  return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct made_up_gpu** gpu) {
  *gpu = &made_up_nvml.gpus[index];
  return (*gpu)->result;
}

int nvmlDeviceGetName(const struct made_up_gpu* gpu, char* name, unsigned length) {
  snprintf(name, length, "%s", gpu->name);
  return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(const struct made_up_gpu* gpu, struct pci_info* info) {
  snprintf(info->bus_id, sizeof info->bus_id, "0000%s", gpu->bus_id);
  return SUCCESS;
}

int nvmlDeviceGetNvLinkState(const struct made_up_gpu* gpu, unsigned link, unsigned* is_on) {
  if (link >= gpu->num_links) {
    return INVALID_ARGUMENT;
  }
  *is_on = gpu->links[link].is_on;
  return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(const struct made_up_gpu* gpu, unsigned link, struct pci_info* info) {
  snprintf(info->bus_id, sizeof info->bus_id, "0000%s", gpu->links[link].peer);
  return SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(const struct made_up_gpu* gpu, unsigned link, unsigned* type) {
  *type = gpu->links[link].type;
  return SUCCESS;
}

int nvmlDeviceGetNvLinkVersion(const struct made_up_gpu* gpu, unsigned link, unsigned* version) {
  (void)link;
  *version = gpu->version;
  return gpu->version != 0 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetFieldValues(const struct made_up_gpu* gpu, int count, struct field_value* values) {
  for (int i = 0; i < count; ++i) {
    const unsigned field = values[i].field_id;
    values[i].value.u = field == LINK_SPEED  ? gpu->mbyte_s
                        : field == C2C_COUNT ? gpu->num_c2c
                        : field == C2C_SPEED ? gpu->c2c_mbyte_s
                                             : 0;
    values[i].result = values[i].value.u != 0 ? SUCCESS : NOT_SUPPORTED;
  }
  return SUCCESS;
}

int nvmlDeviceGetGpuFabricInfoV(const struct made_up_gpu* gpu, struct fabric_info* info) {
  if (info->version != (sizeof *info | 2u << 24)) {
    return INVALID_ARGUMENT;
  }
  memcpy(info->cluster_uuid, gpu->cluster, sizeof info->cluster_uuid);
  info->status = SUCCESS;
  info->clique_id = gpu->clique;
  info->state = (unsigned char)gpu->fabric_state;
  return gpu->fabric_state != 0 ? SUCCESS : NOT_SUPPORTED;
}
