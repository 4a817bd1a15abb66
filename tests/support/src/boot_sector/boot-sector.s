# A guest that is one boot sector of 16-bit code, because some KVMs run nothing else.
#
# At its start it increments the counter in the second sector of its disk, writes it back, and prints "SECTOR boot=N" on the
# first serial port. Then it prints each character that it receives as "<C>", and powers off when the power button is pressed.
# Build: as --32 -o boot-sector.o boot-sector.s && ld -m elf_i386 -Ttext 0x7c00 --oformat binary -o boot-sector boot-sector.o

.code16
.globl _start

.set SERIAL, 0x3f8      # its data register; line status is the sixth after it
.set POWER, 0x600       # PM1 event block of the chipset q35: status, enable; control follows at 4
.set COUNTER, 0x8000    # the second sector

_start:
    cli
    xor %ax, %ax
    mov %ax, %ds
    mov %ax, %es
    mov %ax, %ss
    mov $0x7c00, %sp
    sti
    mov %dl, drive

    mov $0x0201, %ax    # read
    call sector
    incw COUNTER
    mov $0x0301, %ax    # write
    call sector

    mov $text, %si
    call print
    mov COUNTER, %ax
    call number
    mov $end, %si
    call print

    mov $POWER + 2, %dx # the power button sets a status bit
    mov $0x100, %ax
    out %ax, %dx

wait:
    mov $POWER, %dx
    in %dx, %ax
    test $1, %ah
    jnz off
    mov $SERIAL + 5, %dx
    in %dx, %al
    test $1, %al
    jz wait
    mov $SERIAL, %dx
    in %dx, %al
    mov %al, %bl
    mov $'<', %al
    call put
    mov %bl, %al
    call put
    mov $'>', %al
    call put
    jmp wait

off:
    mov $bye, %si
    call print
    mov $POWER + 4, %dx # sleep type of "off", and the bit that enters it
    mov $0x2000, %ax
    out %ax, %dx
    hlt
    jmp off

# The second sector of the disk, with the BIOS function in %ax.
sector:
    mov $COUNTER, %bx
    mov $2, %cx
    mov $0, %dh
    mov drive, %dl
    int $0x13
    ret

# %ax in decimal digits.
number:
    mov $10, %bx
    xor %cx, %cx
1:  xor %dx, %dx
    div %bx
    push %dx
    inc %cx
    test %ax, %ax
    jnz 1b
2:  pop %ax
    add $'0', %al
    call put
    loop 2b
    ret

print:
    lodsb
    test %al, %al
    jz 3f
    call put
    jmp print
3:  ret

# %al on the serial port.
put:
    push %dx
    mov %al, %ah
    mov $SERIAL + 5, %dx
4:  in %dx, %al
    test $0x20, %al
    jz 4b
    mov $SERIAL, %dx
    mov %ah, %al
    out %al, %dx
    pop %dx
    ret

drive: .byte 0
text:  .asciz "SECTOR boot="
end:   .asciz "\r\n"
bye:   .asciz "SECTOR off\r\n"

    .org 510
    .word 0xaa55
