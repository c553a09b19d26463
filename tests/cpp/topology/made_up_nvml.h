// What the made-up NVML answers: a test fills in `made_up_nvml`, which the library exports.
#pragma once

enum { MOST_GPUS = 8, MOST_LINKS = 18 };

// peer: a bus id; type: 0 GPU, 2 switch; is_on: 1, or 0 for a link that is switched off.
struct made_up_link {
  const char* peer;
  unsigned type, is_on;
};

// result: of asking for the GPU. mbyte_s, version: of its links; 0: not supported. fabric_state: 0: not supported.
// c2c_mbyte_s: of each of its links to the processor.
struct made_up_gpu {
  const char *bus_id, *name;
  int result;
  unsigned num_links, mbyte_s, version;
  struct made_up_link links[MOST_LINKS];
  unsigned char cluster[16];
  unsigned clique, fabric_state;
  unsigned num_c2c, c2c_mbyte_s;
};

struct made_up_nvml {
  int init_result;
  unsigned num_gpus, num_shutdowns;
  struct made_up_gpu gpus[MOST_GPUS];
};
