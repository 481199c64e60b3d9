#!/bin/sh
# bootstrap.sh DEBS_DIR ROOT: make a Debian root in ROOT (new or empty) of the .deb files in DEBS_DIR.
#
# The packages must be a whole system: the Essential ones and all that any of them depends on.
# Needs root, dpkg-deb, GNU tar and chroot; no network and no mounts. The same packages give the
# same tree: names, modes, owners, times and contents. Used by build.py and by the Dockerfiles.
set -eu
umask 022

[ $# -eq 2 ] || { echo "usage: bootstrap.sh DEBS_DIR ROOT" >&2; exit 2; }
debs=$1 root=$2
# 2026-01-01; the builder gives its own.
epoch=${SOURCE_DATE_EPOCH:-1767225600}
user=trainer id=1000

say() { echo "bootstrap: $*"; }
die() { echo "bootstrap: $*" >&2; exit 1; }
inside() {
    chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
        TZ=UTC SOURCE_DATE_EPOCH="$epoch" DEBIAN_FRONTEND=noninteractive \
        DEBCONF_NONINTERACTIVE_SEEN=true "$@"
}

[ "$(id -u)" -eq 0 ] || die "needs root, to chroot and to own the files"
mkdir -p "$root"
[ -z "$(ls -A "$root")" ] || die "$root is not empty"
chmod 755 "$root"
count=$(find "$debs" -maxdepth 1 -name '*.deb' | wc -l)
[ "$count" -gt 0 ] || die "no .deb in $debs"

# ── 1. Enough files for dpkg to run inside, as debootstrap does it ─────────────────────────────
# tar instead of dpkg-deb --extract, which would replace the merged /usr's links by folders.
say "extracting the essential packages"
for dir in bin sbin lib lib64; do
    mkdir -p "$root/usr/$dir"
    ln -s "usr/$dir" "$root/$dir"
done
for deb in "$debs"/*.deb; do
    dpkg-deb --show --showformat='${Section} ${Package}\n' "$deb" | {
        read -r section package
        # What is big and what no essential package needs is left to dpkg alone.
        case "$section $package" in *devel\ *|python\ *|javascript\ *|doc\ *) exit 0 ;; esac
        dpkg-deb --fsys-tarfile "$deb" |
            tar -x -C "$root" --keep-directory-symlink --numeric-owner -p
    }
done
mkdir -p "$root/var/lib/dpkg" "$root/dev"
touch "$root/var/lib/dpkg/status"
# Nodes instead of mounts: nothing can be left mounted.
mknod -m 666 "$root/dev/null" c 1 3
mknod -m 666 "$root/dev/zero" c 1 5
mknod -m 666 "$root/dev/random" c 1 8
mknod -m 666 "$root/dev/urandom" c 1 9
(: > "$root/dev/null") || die "$root lies on a file system mounted nodev: use another disk"

# ── 2. Installation by the root's own dpkg ─────────────────────────────────────────────────────
say "installing $count packages"
mkdir "$root/debs"
cp -l "$debs"/*.deb "$root/debs" 2>/dev/null || cp "$debs"/*.deb "$root/debs"
printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
# base-passwd first: the others' files are owned by groups that it makes.
inside sh -c 'dpkg --force-depends --force-unsafe-io --install /debs/base-passwd_*.deb'
inside sh -c 'dpkg --force-depends --force-unsafe-io --install /debs/*.deb'
installed=$(inside dpkg-query --show --showformat='${db:Status-Abbrev}\n' | grep -c '^ii')
[ "$installed" -eq "$count" ] || die "$installed of $count packages are installed and configured"
rm -r "$root/debs" "$root/usr/sbin/policy-rc.d"

# ── 3. The user that images run as; its password is locked ─────────────────────────────────────
days=$((epoch / 86400))
secret='*'
if [ -e "$root/etc/shadow" ]; then
    sed -i "s/^\([^:]*:[^:]*\):[0-9]*:/\1:$days:/" "$root/etc/shadow"
    echo "$user:!:$days:0:99999:7:::" >> "$root/etc/shadow"
    secret=x
fi
echo "$user:$secret:$id:$id::/home/$user:/bin/bash" >> "$root/etc/passwd"
echo "$user:x:$id:" >> "$root/etc/group"
[ ! -e "$root/etc/gshadow" ] || echo "$user:!::" >> "$root/etc/gshadow"
cp -R "$root/etc/skel" "$root/home/$user"
chown -R "$id:$id" "$root/home/$user"

# ── 4. Nothing that varies, nothing that is not needed ─────────────────────────────────────────
say "cleaning"
cd "$root"
rm -rf dev run/* tmp/* var/tmp/* var/cache/* var/log/* var/lib/apt var/lib/systemd
rm -f etc/resolv.conf etc/hostname etc/.pwd.lock etc/passwd- etc/group- etc/shadow- etc/gshadow- \
    var/lib/dpkg/*-old var/lib/dpkg/lock var/lib/dpkg/lock-frontend var/lib/dpkg/triggers/Lock
rm -rf usr/share/man/* usr/share/info/* usr/share/locale/* usr/share/lintian usr/share/doc-base
find usr/share/doc ! -type d ! -name copyright ! -type l -delete
find usr/share/doc -mindepth 1 -type d -empty -delete
find . -depth -name __pycache__ -exec rm -r {} +
mkdir -m 755 dev
[ ! -e etc/machine-id ] || : > etc/machine-id
find . -exec touch --no-dereference --date="@$epoch" {} +
say "done"
