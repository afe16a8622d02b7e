package android.view;

public class Gravity {
    public static final int BOTTOM = 0x50;
    public static final int START = 0x800003;
    public static final int END = 0x800005;
}
