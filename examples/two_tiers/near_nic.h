// Puts a process on cores and memory near the network card that it will use.
#pragma once

#include <string>

// Binds the calling thread, and those that it will start, near NIC number `local_index` of this machine, counted round;
// where there is no NIC with a place, to NUMA node number `local_index`. Returns what was done: "near eth0, cores 0-7";
// or why it was not: nothing is bound then.
std::string bind_near_nic(int local_index);
