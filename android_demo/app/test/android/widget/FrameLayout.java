package android.widget;

import android.content.Context;
import android.view.View;
import android.view.ViewGroup;

public class FrameLayout extends ViewGroup {
    public FrameLayout(Context context) {
        super(context);
    }

    @Override
    public void fakeLayout(int available, boolean fill, int exactly) {
        for (View child : children) {
            child.fakeLayout(available, true, exactly);
        }
        width = available;
        height = exactly;
    }
}
