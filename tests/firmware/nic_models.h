/* nic_models.h: register-level models of NICs behind struct nic_device, for tests of the drivers. One device
 * of each kind; an access that the hardware would not accept fails the test. */
#ifndef TESTS_FIRMWARE_NIC_MODELS_H
#define TESTS_FIRMWARE_NIC_MODELS_H

#include "duck/nic/nic.h"

struct nic_model {
    const struct nic_driver *driver;
    struct nic_device (*make)(void); // a device after power-on, MAC 02:00:00:00:01:05, link up
    void (*set_link)(int up);
    void (*set_dead)(int dead);                          // its reset does not end
    int (*arrive)(const uint8_t *frame, uint32_t bytes); // from the wire; 1: taken, 0: no descriptor
    uint32_t (*transmit)(uint32_t most); // sends up to so many frames that fill() made; returns how many
    uint32_t (*doorbells)(void);         // of transmission
};

extern const struct nic_model virtio_net_model, e1000e_model;

/* Memory that devices reach: addresses are those of this process. */
void *nic_model_memory(void *self, size_t bytes, uint64_t *address);
uint64_t nic_model_now(void *self); // a millisecond passes with every look
void nic_models_free(void);
/* The bytes of a frame that is sent: each is one more than the one before. */
void nic_model_check_sent(const uint8_t *frame, uint32_t bytes);

#endif
