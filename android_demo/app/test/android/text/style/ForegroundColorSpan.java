package android.text.style;

public class ForegroundColorSpan {
    public final int fakeColor;

    public ForegroundColorSpan(int color) { fakeColor = color; }
}
