package android.widget;

import android.content.Context;
import android.view.View;
import java.awt.Graphics2D;

public class ScrollView extends FrameLayout {
    public ScrollView(Context context) {
        super(context);
    }

    @Override
    public void scrollTo(int x, int y) {
        super.scrollTo(x, Math.max(0, Math.min(y, children.get(0).getHeight() - height)));
    }

    @Override
    public void fakeLayout(int available, boolean fill, int exactly) {
        View child = children.get(0);
        child.fakeLayout(available, true, -1);
        width = available;
        height = exactly;
        scrollTo(0, getScrollY());
    }

    @Override
    public void fakeDraw(Graphics2D on) {
        on.clipRect(0, 0, width, height);
        super.fakeDraw(on);
    }
}
