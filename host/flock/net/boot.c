/* boot.c: dnsmasq's configuration, its folder, its process. */
#include "host/flock/net/boot.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "host/util/clock.h"
#include "host/util/log.h"

#define IMAGE "BOOTX64.EFI"
#define AGAIN_NS (10ull * 1000000000)
#define END_NS (2ull * 1000000000)

struct net_boot {
    const struct net_config *config;
    pid_t pid; // 0: not running
    uint64_t ended_ns;
};

/* ---- configuration ---- */

static uint32_t mask_of(const struct net_port_config *p)
{
    return p->prefix ? (uint32_t) ~((1ull << (32 - p->prefix)) - 1) : 0;
}

static uint32_t usual_first(const struct net_config *c, uint32_t port)
{
    return (c->port[port].address & mask_of(&c->port[port])) + 100;
}

/* The addresses of a port's ducks without a MAC address: from the lowest that one of them has (else .100 of
 * the network), as many as there are such ducks. */
static uint32_t pool_of(const struct net_config *c, uint32_t port, uint32_t *first)
{
    uint32_t count = 0, lowest = UINT32_MAX;
    for (uint32_t i = 0; i < c->ducks; i++) {
        const struct net_match *m = &c->match[i];
        if (m->port != port || m->has_mac) continue;
        count++;
        if (m->address && m->address < lowest) lowest = m->address;
    }
    *first = lowest != UINT32_MAX ? lowest : usual_first(c, port);
    return count;
}

static bool is_taken(const struct net_config *c, uint32_t port, uint32_t address)
{
    uint32_t first, pool = pool_of(c, port, &first);
    if (address == c->port[port].address || (address >= first && address - first < pool)) return true;
    for (uint32_t i = 0; i < c->ducks; i++)
        if (c->match[i].port == port && c->match[i].address == address) return true;
    return false;
}

/* Of a duck with a MAC address: the file's, or else the first that nobody has, in the order of the file. */
static uint32_t address_of(const struct net_config *c, uint32_t duck)
{
    const struct net_match *m = &c->match[duck];
    if (m->address) return m->address;
    uint32_t address = usual_first(c, m->port) - 1;
    for (uint32_t i = 0; i <= duck; i++) {
        if (c->match[i].port != m->port || !c->match[i].has_mac || c->match[i].address) continue;
        do address++;
        while (is_taken(c, m->port, address));
    }
    return address;
}

static void write_port(const struct net_config *c, uint32_t port, FILE *out)
{
    char a[16], b[16], mask[16];
    uint32_t first, pool = pool_of(c, port, &first);
    net_show_address(mask_of(&c->port[port]), mask);
    fprintf(out, "interface=duckd%u\n", port);
    if (pool) {
        net_show_address(first, a);
        net_show_address(first + pool - 1, b);
        fprintf(out, "dhcp-range=%s,%s,%s,1h\n", a, b, mask);
    } else {
        net_show_address(c->port[port].address & mask_of(&c->port[port]), a);
        fprintf(out, "dhcp-range=%s,static,%s,1h\n", a, mask); // who is not named gets nothing
    }
    for (uint32_t i = 0; i < c->ducks; i++) {
        const struct net_match *m = &c->match[i];
        if (m->port != port || !m->has_mac) continue;
        net_show_address(address_of(c, i), a);
        fprintf(out, "dhcp-host=%s,%s\n", net_show_mac(m->mac).s, a);
    }
}

void net_boot_write(const struct net_config *c, FILE *out)
{
    const char *dir = c->boot_dir;
    fprintf(
        out,
        "port=0\nbind-interfaces\nexcept-interface=lo\nno-resolv\nno-hosts\nno-ping\ndhcp-authoritative\n");
    fprintf(out, "dhcp-leasefile=%s/leases\npid-file=%s/dnsmasq.pid\nlog-facility=%s/dnsmasq.log\nlog-dhcp\n",
            dir, dir, dir);
    // RFC 4578, 2.1: x86-64 UEFI is 7, and 9 by a registry that some firmware follows.
    fprintf(out, "dhcp-match=set:efi,option:client-arch,7\ndhcp-match=set:efi,option:client-arch,9\n");
    // Every MAC address of the file has a folder of its own; who has none finds what is in tftp/ itself.
    fprintf(out, "dhcp-boot=tag:efi," IMAGE "\nenable-tftp\ntftp-root=%s/tftp\ntftp-unique-root=mac\n", dir);
    // The folder is ours alone; and whoever changes its group is no longer ended with us.
    if (geteuid() == 0) fprintf(out, "user=root\ngroup=root\n");
    for (uint32_t i = 0; i < c->wires; i++) write_port(c, i, out);
}

/* ---- folder ---- */

static int make_folder(const char *path, struct error *err)
{
    if ((mkdir(path, 0700) == 0 || errno == EEXIST) && chmod(path, 0700) == 0) return 0;
    return error_set(err, -errno, "boot: folder %s: %s", path, strerror(errno));
}

static FILE *create(const char *path, mode_t mode, struct error *err)
{
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    FILE *f = fd < 0 || fchmod(fd, mode) ? NULL : fdopen(fd, "w"); // whatever the umask
    if (!f) error_set(err, -errno, "boot: %s: %s", path, strerror(errno));
    return f;
}

static int remove_entry(const char *path, const struct stat *about, int kind, struct FTW *where)
{
    (void)about, (void)kind, (void)where;
    return remove(path);
}

/* What ducks fetch from `folder`: the image, and duck.conf with the key and, unless it is 0, their address.
 * As root dnsmasq sends only what everybody may read; the folder above keeps everybody out. */
static int serve(const struct net_config *c, const char *folder, uint32_t address, struct error *err)
{
    char path[700], a[16];
    if (make_folder(folder, err)) return -EIO;
    snprintf(path, sizeof path, "%s/" IMAGE, folder);
    if (symlink(c->boot_image, path)) return error_set(err, -errno, "boot: %s: %s", path, strerror(errno));
    snprintf(path, sizeof path, "%s/duck.conf", folder);
    FILE *f = create(path, 0644, err);
    if (!f) return -EIO;
    fprintf(f, "key=%s\n", c->key_text);
    net_show_address(address, a);
    if (address) fprintf(f, "address=%s\n", a);
    return fclose(f) ? error_set(err, -EIO, "boot: %s: %s", path, strerror(errno)) : 0;
}

/* A folder for each MAC address; tftp/ itself has something only where there are ducks without. */
static int fill_tftp(const struct net_config *c, struct error *err)
{
    char root[600], path[700];
    bool open_to_all = false;
    snprintf(root, sizeof root, "%s/tftp", c->boot_dir);
    nftw(root, remove_entry, 8, FTW_DEPTH | FTW_PHYS); // keys of ducks that were in the file once
    int rc = make_folder(root, err);
    for (uint32_t i = 0; i < c->ducks && !rc; i++) {
        const struct net_match *m = &c->match[i];
        if (m->port >= c->wires) continue;
        open_to_all |= !m->has_mac;
        if (!m->has_mac) continue;
        snprintf(path, sizeof path, "%s/%02x-%02x-%02x-%02x-%02x-%02x", root, m->mac[0], m->mac[1], m->mac[2],
                 m->mac[3], m->mac[4], m->mac[5]);
        rc = serve(c, path, address_of(c, i), err);
    }
    return !rc && open_to_all ? serve(c, root, 0, err) : rc;
}

int net_boot_fill(const struct net_config *c, struct error *err)
{
    char path[600];
    snprintf(path, sizeof path, "%s", c->boot_dir);
    for (char *p = path + 1; (p = strchr(p, '/')); p++) { // those above it: may be there
        *p = 0;
        mkdir(path, 0755);
        *p = '/';
    }
    if (make_folder(path, err)) return -EIO;
    snprintf(path, sizeof path, "%s/dnsmasq.conf", c->boot_dir);
    FILE *f = create(path, 0600, err);
    if (!f) return -EIO;
    net_boot_write(c, f);
    if (fclose(f)) return error_set(err, -EIO, "boot: %s: %s", path, strerror(errno));
    return fill_tftp(c, err);
}

/* ---- interfaces ---- */

static int set_address(int s, unsigned long what, const char *interface, uint32_t address)
{
    struct ifreq r = {0};
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(address)};
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", interface);
    memcpy(&r.ifr_addr, &a, sizeof a);
    return ioctl(s, what, &r);
}

/* The tap of a port gets the port's address. */
static int raise_tap(uint32_t port, const struct net_port_config *p, struct error *err)
{
    struct ifreq r = {0};
    snprintf(r.ifr_name, sizeof r.ifr_name, "duckd%u", port);
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int rc = s < 0 || set_address(s, SIOCSIFADDR, r.ifr_name, p->address) ||
             set_address(s, SIOCSIFNETMASK, r.ifr_name, mask_of(p)) || ioctl(s, SIOCGIFFLAGS, &r);
    r.ifr_flags |= IFF_UP;
    if (!rc) rc = ioctl(s, SIOCSIFFLAGS, &r);
    if (rc) rc = error_set(err, -errno, "boot: interface duckd%u: %s", port, strerror(errno));
    if (s >= 0) close(s);
    return rc;
}

/* ---- process ---- */

/* In the child: only calls that are safe between fork and exec. The thread that starts us is pinned to a CPU.
 */
static _Noreturn void become_dnsmasq(const char *conf, int report)
{
    cpu_set_t all;
    memset(&all, 0xff, sizeof all);
    sched_setaffinity(0, sizeof all, &all);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    execlp("dnsmasq", "dnsmasq", "--keep-in-foreground", conf, (char *)NULL);
    int why = errno;
    if (write(report, &why, sizeof why) < 0) _exit(126);
    _exit(127);
}

static int spawn(struct net_boot *b, struct error *err)
{
    char conf[600];
    int report[2], why = 0;
    snprintf(conf, sizeof conf, "--conf-file=%s/dnsmasq.conf", b->config->boot_dir);
    if (pipe2(report, O_CLOEXEC)) return error_set(err, -errno, "boot: no pipe: %s", strerror(errno));
    b->pid = fork();
    if (b->pid == 0) become_dnsmasq(conf, report[1]);
    close(report[1]);
    ssize_t got = b->pid < 0 ? -1 : read(report[0], &why, sizeof why); // ends when exec has closed it
    close(report[0]);
    if (b->pid > 0 && got == 0) return 0;
    if (b->pid > 0) waitpid(b->pid, NULL, 0);
    b->pid = 0;
    return error_set(err, got < 0 ? -EIO : -why, "boot: dnsmasq cannot be started: %s%s",
                     strerror(got < 0 ? errno : why), why == ENOENT ? " (apt-get install dnsmasq-base)" : "");
}

int net_boot_start(struct net_boot **out, const struct net_config *c, struct error *err)
{
    if (access(c->boot_image, R_OK))
        return error_set(err, -errno, "boot: image %s: %s", *c->boot_image ? c->boot_image : "beside duckd",
                         strerror(errno));
    struct net_boot *b = calloc(1, sizeof *b);
    if (!b) return error_set(err, -ENOMEM, "boot: no memory");
    b->config = c;
    int rc = net_boot_fill(c, err);
    for (uint32_t i = 0; i < c->wires && !rc; i++) rc = raise_tap(i, &c->port[i], err);
    if (!rc) rc = spawn(b, err);
    if (rc) {
        free(b);
        return rc;
    }
    log_notice("boot: %u port%s %s; dnsmasq says what it does in %s/dnsmasq.log", c->wires,
               c->wires == 1 ? " serves" : "s serve", c->boot_image, c->boot_dir);
    *out = b;
    return 0;
}

void net_boot_watch(struct net_boot *b)
{
    int status;
    struct error err = {0};
    if (b->pid && waitpid(b->pid, &status, WNOHANG) == b->pid) {
        log_error("boot: dnsmasq has ended with status %d (%s/dnsmasq.log); starting it again in 10 s",
                  WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), b->config->boot_dir);
        b->pid = 0;
        b->ended_ns = clock_ns();
    }
    if (!b->pid && clock_ns() - b->ended_ns > AGAIN_NS && spawn(b, &err)) {
        log_error("%s", err.text);
        b->ended_ns = clock_ns();
    }
}

void net_boot_stop(struct net_boot *b)
{
    if (!b) return;
    uint64_t start = clock_ns();
    if (b->pid) kill(b->pid, SIGTERM);
    while (b->pid && waitpid(b->pid, NULL, WNOHANG) == 0) {
        if (clock_ns() - start > END_NS) kill(b->pid, SIGKILL);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    free(b);
}
